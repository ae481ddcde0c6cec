//! The interface to the store of an archive.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;
use larder_archive::{Archive, Error, Receipt, Source, Version};

/// A request to the store.
pub type Doing<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// Where versions of files are put.
pub trait Store: Debug + Send + Sync + 'static {
    /// Where that is, for people.
    fn url(&self) -> String;

    /// Puts a version of so many bytes. When it is done, the store has all of it.
    fn put<'a>(
        &'a self,
        version: &'a Version,
        bytes: u64,
        source: &'a mut dyn Source,
    ) -> Doing<'a, Receipt>;

    /// Reads bytes of a version: from `offset` on, at least one and at most as many.
    fn read<'a>(
        &'a self,
        version: &'a Version,
        receipt: Receipt,
        offset: u64,
        length: u64,
    ) -> Doing<'a, Bytes>;

    /// Deletes what there is of a version.
    fn delete<'a>(&'a self, version: &'a Version) -> Doing<'a, ()>;
}

impl Store for Archive {
    fn url(&self) -> String {
        self.url()
    }

    fn put<'a>(
        &'a self,
        version: &'a Version,
        bytes: u64,
        source: &'a mut dyn Source,
    ) -> Doing<'a, Receipt> {
        Box::pin(Archive::put(self, version, bytes, source))
    }

    fn read<'a>(
        &'a self,
        version: &'a Version,
        receipt: Receipt,
        offset: u64,
        length: u64,
    ) -> Doing<'a, Bytes> {
        Box::pin(async move {
            let held = self.held(version, receipt).await?;
            let holds = |section: &u64| held.range(*section).contains(&offset);
            let section = (0..held.sections()).find(holds);
            let section = section.ok_or_else(|| Error::Altered("a version".to_owned()))?;
            let bytes = held.read(section).await?;
            let start = usize::try_from(offset - held.range(section).start).unwrap_or(usize::MAX);
            let end = start.saturating_add(usize::try_from(length).unwrap_or(usize::MAX));
            Ok(bytes.slice(start..end.min(bytes.len())))
        })
    }

    fn delete<'a>(&'a self, version: &'a Version) -> Doing<'a, ()> {
        Box::pin(Archive::delete(self, version))
    }
}
