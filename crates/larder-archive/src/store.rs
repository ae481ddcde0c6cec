//! The store: what is there is read, listed and deleted. Putting is `send.rs`.

use std::time::Duration;

use bytes::Bytes;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::{ClientOptions, ObjectMeta, ObjectStoreExt, RetryConfig};

use crate::credentials::Credentials;
use crate::error::{Error, Refusal};
use crate::key::{self, Version};
use crate::place::Place;
use crate::receipt::{Receipt, SUM_BYTES, Shape, Sum, receipt, sum};

/// The longest that connecting to the store may take.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// The longest that one request may take: a section at 28 KB/s.
const REQUEST_MAX: Duration = Duration::from_secs(300);
/// How many keys a listing asks for at a time: stores give no more.
const KEYS_AT_A_TIME: usize = 1000;

/// The archive of volumes at one place.
#[derive(Debug)]
pub struct Archive {
    store: AmazonS3,
    place: Place,
    shape: Shape,
}

impl Archive {
    /// Makes ready to use a store, without asking it anything. Requests that fail for a reason that
    /// passes are made again for `patience`.
    ///
    /// # Errors
    /// [`Error::Refused`] if the machine has no certificates by which to know a store.
    pub fn new(
        place: Place,
        credentials: Credentials,
        shape: Shape,
        patience: Duration,
    ) -> Result<Archive, Error> {
        let plain = place.endpoint.as_ref().is_some_and(|address| address.starts_with("http://"));
        let mut options = ClientOptions::new()
            .with_allow_http(plain)
            .with_connect_timeout(CONNECT_MAX)
            .with_timeout(REQUEST_MAX);
        for authority in &place.authorities {
            options = options.with_root_certificate(authority.clone());
        }
        let retry = RetryConfig {
            max_retries: usize::MAX,
            retry_timeout: patience,
            ..RetryConfig::default()
        };
        let mut builder = AmazonS3Builder::new()
            .with_bucket_name(&place.bucket)
            .with_region(&place.region)
            .with_access_key_id(credentials.access)
            .with_secret_access_key(credentials.secret)
            .with_client_options(options)
            .with_retry(retry);
        if let Some(token) = credentials.token {
            builder = builder.with_token(token);
        }
        if let Some(address) = &place.endpoint {
            builder = builder.with_endpoint(address);
        }
        let store = builder.build().map_err(|error| Error::Refused {
            why: Refusal::Other,
            text: format!("cannot use {}: {error}", place.url()),
        })?;
        Ok(Archive { store, place, shape })
    }

    /// Where it is, as a URL.
    pub fn url(&self) -> String {
        self.place.url()
    }

    /// Asks the store whether it lets us list this volume's objects: whether it is there, knows the
    /// account, and has the bucket.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn reach(&self, volume: [u8; 16]) -> Result<(), Error> {
        let below = key::volume(&self.place.prefix, volume);
        self.page(&below, 1, None).await.map(drop)
    }

    /// Makes ready to read a version, of which the caller has the receipt: fetches the checksums of
    /// its sections, and checks them.
    ///
    /// # Errors
    /// [`Error`]; [`Error::Altered`] if the checksums are not those that were stored.
    pub async fn held(&self, version: &Version, receipt_of: Receipt) -> Result<Held<'_>, Error> {
        let sums = match self.shape.sections(receipt_of.bytes) {
            1 => vec![receipt_of.root],
            sections => self.sums(version, sections).await?,
        };
        if receipt(receipt_of.bytes, &sums) != receipt_of {
            return Err(Error::Altered(self.key(|prefix| version.sums(prefix)).to_string()));
        }
        Ok(Held { archive: self, version: *version, bytes: receipt_of.bytes, sums })
    }

    async fn sums(&self, version: &Version, sections: u64) -> Result<Vec<Sum>, Error> {
        let key = self.key(|prefix| version.sums(prefix));
        let length = sections * SUM_BYTES as u64;
        let read = self.store.get_range(&key, 0..length).await;
        let read = read.map_err(|error| self.error(&key, &error))?;
        match read.as_chunks() {
            (sums, []) if read.len() as u64 == length => Ok(sums.to_vec()),
            _ => Err(Error::Altered(key.to_string())),
        }
    }

    /// Deletes all objects of a version. Deleting what is not there succeeds.
    ///
    /// # Errors
    /// [`Error`]. Some objects may be deleted then; deleting again continues.
    pub async fn delete(&self, version: &Version) -> Result<(), Error> {
        let below = self.key(|prefix| version.folder(prefix));
        loop {
            let (objects, more) = self.page(&below, KEYS_AT_A_TIME, None).await?;
            for object in &objects {
                match self.store.delete(&object.location).await {
                    Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
                    Err(error) => return Err(self.error(&object.location, &error)),
                }
            }
            if more.is_none() {
                return Ok(());
            }
        }
    }

    /// Calls `seen` with each version of the volume of which the store has an object, in the order
    /// of inodes and data versions.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn versions(
        &self,
        volume: [u8; 16],
        mut seen: impl FnMut(Version),
    ) -> Result<(), Error> {
        let prefix = &self.place.prefix;
        let below = key::volume(prefix, volume);
        let (mut last, mut token) = (None, None);
        loop {
            let (objects, more) = self.page(&below, KEYS_AT_A_TIME, token).await?;
            let of = |one: &ObjectMeta| key::version_of(prefix, volume, &one.location);
            for version in objects.iter().filter_map(of) {
                if last.replace(version) != Some(version) {
                    seen(version);
                }
            }
            token = more;
            if token.is_none() {
                return Ok(());
            }
        }
    }

    /// Some of the objects below a key, and where the listing continues.
    async fn page(
        &self,
        below: &Path,
        keys: usize,
        token: Option<String>,
    ) -> Result<(Vec<ObjectMeta>, Option<String>), Error> {
        let options = PaginatedListOptions {
            max_keys: Some(keys),
            page_token: token,
            ..PaginatedListOptions::default()
        };
        // Without the slash, a key that only begins alike would be listed, too.
        let listed = self.store.list_paginated(Some(&format!("{below}/")), options).await;
        let listed = listed.map_err(|error| self.error(below, &error))?;
        Ok((listed.result.objects, listed.page_token))
    }

    pub(crate) fn store(&self) -> &AmazonS3 {
        &self.store
    }

    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    pub(crate) fn key(&self, of: impl FnOnce(&Path) -> Path) -> Path {
        of(&self.place.prefix)
    }

    pub(crate) fn error(&self, key: &Path, error: &object_store::Error) -> Error {
        Error::from_store(&self.place, key.as_ref(), error)
    }
}

/// A version whose checksums are known.
#[derive(Debug)]
pub struct Held<'a> {
    archive: &'a Archive,
    version: Version,
    bytes: u64,
    sums: Vec<Sum>,
}

impl Held<'_> {
    /// How many sections the version has; at least one.
    pub fn sections(&self) -> u64 {
        self.sums.len() as u64
    }

    /// Which bytes of the version a section has.
    ///
    /// # Panics
    /// If there is no such section.
    pub fn range(&self, section: u64) -> std::ops::Range<u64> {
        self.archive.shape.section(self.bytes, section)
    }

    /// Reads a section.
    ///
    /// # Errors
    /// [`Error`]; [`Error::Altered`] if the bytes are not those that were stored.
    ///
    /// # Panics
    /// If there is no such section.
    pub async fn read(&self, section: u64) -> Result<Bytes, Error> {
        let archive = self.archive;
        let (object, range) = archive.shape.place(self.bytes, section);
        let key = archive.key(|prefix| self.version.object(prefix, object));
        // Stores refuse an empty range; of an empty version nothing needs to be asked for.
        let read = match range.is_empty() {
            true => Bytes::new(),
            false => {
                let read = archive.store.get_range(&key, range).await;
                read.map_err(|error| archive.error(&key, &error))?
            }
        };
        let at = usize::try_from(section).expect("a section of the version");
        match sum(&read) == self.sums[at] {
            true => Ok(read),
            false => Err(Error::Altered(key.to_string())),
        }
    }
}
