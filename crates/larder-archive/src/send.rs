//! Putting a version: its objects first, then its checksums.

use std::future::Future;
use std::io;
use std::pin::Pin;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{MultipartUpload, ObjectStoreExt};
use tokio::task::JoinSet;

use crate::error::Error;
use crate::key::Version;
use crate::receipt::{Receipt, Sum, receipt, sum};
use crate::store::Archive;

/// How many parts of an object are in flight: with the default shape, 32 MiB of memory.
const PARTS_IN_FLIGHT: usize = 4;

/// Where the bytes of a version come from.
pub trait Source: Send {
    /// Reads exactly these bytes of the version. It is asked for one section after the other.
    fn read(
        &mut self,
        offset: u64,
        length: usize,
    ) -> Pin<Box<dyn Future<Output = io::Result<Bytes>> + Send + '_>>;
}

impl Source for Bytes {
    fn read(
        &mut self,
        offset: u64,
        length: usize,
    ) -> Pin<Box<dyn Future<Output = io::Result<Bytes>> + Send + '_>> {
        let begin = usize::try_from(offset).expect("it is in memory");
        let read = match begin.checked_add(length).filter(|end| *end <= self.len()) {
            Some(end) => Ok(self.slice(begin..end)),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        };
        Box::pin(std::future::ready(read))
    }
}

impl Archive {
    /// Puts a version of `bytes` bytes. When it returns, the store has all of it. Putting a version
    /// again replaces it by the same; so does a put after one that failed.
    ///
    /// # Errors
    /// [`Error`]. Some objects of the version may be in the store then: [`Archive::delete`] removes
    /// them. Parts of an object that was not completed may be left if the store is away; the store
    /// removes them if its bucket has a rule for incomplete uploads.
    pub async fn put(
        &self,
        version: &Version,
        bytes: u64,
        source: &mut dyn Source,
    ) -> Result<Receipt, Error> {
        let shape = self.shape();
        let mut sums = Vec::new();
        for object in 0..shape.objects(bytes) {
            let sections = shape.of_object(bytes, object);
            let key = self.key(|prefix| version.object(prefix, object));
            if sections.end - sections.start == 1 {
                let section = self.section(source, bytes, sections.start, &mut sums).await?;
                self.put_small(&key, section).await?;
                continue;
            }
            let started = self.store().put_multipart(&key).await;
            let mut upload = started.map_err(|error| self.error(&key, &error))?;
            let sent =
                self.put_parts(&key, upload.as_mut(), source, bytes, sections, &mut sums).await;
            if let Err(error) = sent {
                // If the store does not take the abort either, its own rules remove the parts.
                let _ = upload.abort().await;
                return Err(error);
            }
        }
        if sums.len() > 1 {
            let key = self.key(|prefix| version.sums(prefix));
            self.put_small(&key, Bytes::copy_from_slice(sums.as_flattened())).await?;
        }
        Ok(receipt(bytes, &sums))
    }

    async fn put_small(&self, key: &Path, bytes: Bytes) -> Result<(), Error> {
        let put = self.store().put(key, bytes.into()).await;
        put.map(drop).map_err(|error| self.error(key, &error))
    }

    /// Sends the parts of one object, several at a time, and completes it.
    async fn put_parts(
        &self,
        key: &Path,
        upload: &mut dyn MultipartUpload,
        source: &mut dyn Source,
        bytes: u64,
        sections: std::ops::Range<u64>,
        sums: &mut Vec<Sum>,
    ) -> Result<(), Error> {
        // Dropped on an error, it ends the parts that are in flight.
        let mut in_flight = JoinSet::new();
        for section in sections {
            if in_flight.len() == PARTS_IN_FLIGHT {
                self.next_part(key, &mut in_flight).await?;
            }
            let part = self.section(source, bytes, section, sums).await?;
            in_flight.spawn(upload.put_part(part.into()));
        }
        while !in_flight.is_empty() {
            self.next_part(key, &mut in_flight).await?;
        }
        upload.complete().await.map(drop).map_err(|error| self.error(key, &error))
    }

    async fn next_part(
        &self,
        key: &Path,
        in_flight: &mut JoinSet<object_store::Result<()>>,
    ) -> Result<(), Error> {
        let sent = in_flight.join_next().await.expect("one is in flight");
        sent.expect("a part does not panic").map_err(|error| self.error(key, &error))
    }

    /// Reads a section to be put, and notes its checksum.
    async fn section(
        &self,
        source: &mut dyn Source,
        bytes: u64,
        section: u64,
        sums: &mut Vec<Sum>,
    ) -> Result<Bytes, Error> {
        let range = self.shape().section(bytes, section);
        let length = usize::try_from(range.end - range.start).expect("a section fits in memory");
        let read = source.read(range.start, length).await.map_err(Error::Source)?;
        if read.len() != length {
            return Err(Error::Source(io::ErrorKind::UnexpectedEof.into()));
        }
        sums.push(sum(&read));
        Ok(read)
    }
}
