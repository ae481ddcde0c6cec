//! A server, an archive on it, and bytes to put there.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use larder_archive::{Archive, Credentials, Error, Place, Receipt, Shape, Source, Version};
use larder_testkit::Versitygw;

/// Small objects, of sections as short as stores take.
pub(crate) const SHAPE: Shape = Shape { section_bytes: MIB5, object_sections: 2 };
pub(crate) const MIB5: usize = 5 << 20;
pub(crate) const VOLUME: [u8; 16] = *b"a volume of ours";
pub(crate) const PREFIX: &str = "office/larder";

/// Longer than a server takes to start again on a busy machine.
const PATIENT: Duration = Duration::from_secs(120);

pub(crate) struct World {
    pub(crate) server: Versitygw,
    pub(crate) archive: Archive,
}

impl World {
    pub(crate) fn start() -> World {
        let server = Versitygw::start().unwrap();
        let archive = archive(&server, Versitygw::BUCKET, Versitygw::SECRET, PATIENT);
        World { server, archive }
    }

    /// The same archive, by a client that asks once.
    pub(crate) fn impatient(&self) -> Archive {
        archive(&self.server, Versitygw::BUCKET, Versitygw::SECRET, Duration::ZERO)
    }

    /// The file in which the server keeps an object.
    pub(crate) fn object(&self, version: &Version, name: &str) -> PathBuf {
        let hex: String = VOLUME.iter().map(|byte| format!("{byte:02x}")).collect();
        let (ino, data) = (version.ino, version.data_version);
        self.server.bucket().join(format!("{PREFIX}/{hex}/{ino:016x}/{data:016x}/{name}"))
    }
}

pub(crate) fn archive(
    server: &Versitygw,
    bucket: &str,
    secret: &str,
    patience: Duration,
) -> Archive {
    let url = format!("s3://{bucket}/{PREFIX}");
    at(Place::parse(&url, Some(&server.endpoint()), None).unwrap(), secret, patience)
}

pub(crate) fn at(place: Place, secret: &str, patience: Duration) -> Archive {
    let credentials = Credentials::from_environment(|name| match name {
        "AWS_ACCESS_KEY_ID" => Some(Versitygw::ACCESS.to_owned()),
        "AWS_SECRET_ACCESS_KEY" => Some(secret.to_owned()),
        _ => None,
    });
    Archive::new(place, credentials.unwrap(), SHAPE, patience).unwrap()
}

pub(crate) fn version(ino: u64, data_version: u64) -> Version {
    Version { volume: VOLUME, ino, data_version }
}

/// Bytes that differ from section to section.
pub(crate) fn bytes(length: usize, seed: u8) -> Bytes {
    (0..length).map(|at| (at / 7 + at / MIB5) as u8 ^ seed).collect()
}

pub(crate) async fn put(archive: &Archive, version: &Version, bytes: &Bytes) -> Receipt {
    archive.put(version, bytes.len() as u64, &mut bytes.clone()).await.unwrap()
}

/// Reads all sections, in order.
pub(crate) async fn get(
    archive: &Archive,
    version: &Version,
    receipt: Receipt,
) -> Result<Vec<u8>, Error> {
    let held = archive.held(version, receipt).await?;
    let mut read = Vec::new();
    for section in 0..held.sections() {
        assert_eq!(held.range(section).start, read.len() as u64);
        read.extend_from_slice(&held.read(section).await?);
        assert_eq!(held.range(section).end, read.len() as u64);
    }
    Ok(read)
}

/// Calls `before` with the number of each read, before it.
pub(crate) struct Hooked<F> {
    pub(crate) bytes: Bytes,
    pub(crate) reads: usize,
    pub(crate) before: F,
}

impl<F: FnMut(usize) -> io::Result<()> + Send> Source for Hooked<F> {
    fn read(
        &mut self,
        offset: u64,
        length: usize,
    ) -> Pin<Box<dyn Future<Output = io::Result<Bytes>> + Send + '_>> {
        self.reads += 1;
        match (self.before)(self.reads) {
            Ok(()) => self.bytes.read(offset, length),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }
}

/// How many files there are below a directory.
pub(crate) fn files(below: &Path) -> usize {
    let Ok(entries) = std::fs::read_dir(below) else { return 0 };
    let count = |entry: io::Result<std::fs::DirEntry>| match entry.unwrap() {
        one if one.file_type().unwrap().is_dir() => files(&one.path()),
        _ => 1,
    };
    entries.map(count).sum()
}
