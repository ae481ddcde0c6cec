//! An archive of tests, and its worker step by step.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use larder_archive::Source;
use larder_wire::meta::calls::ArchiveTold;
use larder_wire::meta::words::FileId;
use larder_wire::meta::{BLOCK_BYTES, Res};
use tokio::sync::oneshot;

use super::{Rig, decode};
use crate::archive::{Doing, Error, Receipt, Store, Version};
use crate::committer::{ArchiveAsked, Event, ToArchive};
use crate::live::archiving::{Part, Unread, Work};

/// What a server is started with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Given {
    /// No archive.
    Nothing,
    /// An archive.
    #[default]
    Archive,
    /// One that is level durable.
    Durable,
}

/// Versions of one block, by what that has; and what a server that starts is told.
#[derive(Debug, Default)]
pub(crate) struct FakeStore(pub(crate) Mutex<BTreeMap<Version, u64>>, pub(crate) Mutex<Given>);

impl FakeStore {
    /// As servers are told.
    pub(super) fn given(&self) -> (Option<&dyn Store>, bool) {
        match *self.1.lock().unwrap() {
            Given::Nothing => (None, false),
            Given::Archive => (Some(self), false),
            Given::Durable => (Some(self), true),
        }
    }
}

impl Store for FakeStore {
    fn url(&self) -> String {
        "s3://test".to_owned()
    }

    fn put<'a>(&'a self, _: &'a Version, _: u64, _: &'a mut dyn Source) -> Doing<'a, Receipt> {
        unreachable!("tests are the worker")
    }

    fn read<'a>(
        &'a self,
        version: &'a Version,
        _receipt: Receipt,
        offset: u64,
        _length: u64,
    ) -> Doing<'a, Bytes> {
        assert_eq!(offset, 0);
        let what = self.0.lock().unwrap().get(version).copied();
        let block = what.map(|what| {
            let mut block = vec![0; BLOCK_BYTES as usize];
            block[..8].copy_from_slice(&what.to_le_bytes());
            Bytes::from(block)
        });
        let read = block.ok_or_else(|| Error::Missing("a block".to_owned()));
        Box::pin(std::future::ready(read))
    }

    fn delete<'a>(&'a self, _: &'a Version) -> Doing<'a, ()> {
        unreachable!("tests are the worker")
    }
}

impl Rig {
    /// The server is started again with another archive.
    pub(crate) fn given(self, given: Given) -> Rig {
        *self.store.1.lock().unwrap() = given;
        self.crash()
    }

    fn ask_archive(&mut self, asked: ToArchive) {
        self.event(Event::Archive(asked));
    }

    /// A client asks what the archive has of a file, which is to be there within this time.
    pub(crate) fn archive_told(
        &mut self,
        file: FileId,
        within: Option<Duration>,
    ) -> Res<ArchiveTold> {
        let (waiter, mut reply) = oneshot::channel();
        let within_ms = within.map(|within| u32::try_from(within.as_millis()).unwrap());
        self.event(Event::AskArchive(ArchiveAsked { file, within_ms, waiter }));
        decode(&reply.try_recv().expect("an answer at once"))
    }

    /// The worker asks what to do.
    pub(crate) fn next_to_archive(&mut self) -> Option<Work> {
        let (waiter, mut work) = oneshot::channel();
        self.ask_archive(ToArchive::Next(waiter));
        work.try_recv().expect("an answer at once")
    }

    /// The worker asks where bytes of a version are.
    pub(crate) fn part(&mut self, version: Version, range: Range<u64>) -> Result<Part, Unread> {
        let (waiter, mut part) = oneshot::channel();
        self.ask_archive(ToArchive::Part(version, range, waiter));
        part.try_recv().expect("an answer at once")
    }

    /// The worker has put a version, or not.
    pub(crate) fn was_put(&mut self, version: Version, put: Result<Receipt, Error>) {
        self.ask_archive(ToArchive::Put(version, put));
    }

    /// The worker has deleted a version, or not.
    pub(crate) fn was_deleted(&mut self, version: Version, deleted: Result<(), Error>) {
        self.ask_archive(ToArchive::Deleted(version, deleted));
    }
}
