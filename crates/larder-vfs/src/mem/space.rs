//! Room and holes of the model: what is stored takes room, page by page.

use crate::{Change, Cred, Error, Handle, Result, Seek, SpaceChange, SpaceKind};

use super::node::{Body, READ, SET_GID, SET_UID, WRITE};
use super::pages::Pages;
use super::server::Server;

/// The most that the model allocates at once, in bytes; beyond that it has no space.
const ALLOCATED_BYTES_MAX: u64 = 1 << 30;

impl Server {
    pub(super) fn change_space(
        &mut self,
        cred: &Cred,
        file: &Handle,
        change: &SpaceChange,
    ) -> Result<Change> {
        let number = self.resolve(file)?;
        self.data(cred, number, WRITE)?;
        change.check(self.limits.file_size_max)?;
        let allocates = change.kind != SpaceKind::Punch;
        let length = change.range.end - change.range.start;
        if allocates && (self.is_full() || length > ALLOCATED_BYTES_MAX) {
            return Err(Error::NoSpace);
        }
        let now = self.tick();
        let node = self.node_mut(number);
        let before = node.before();
        if allocates && change.range.end > change.size_after(before.size) {
            // There is no room beyond the end of a file.
            return Err(Error::NotSupported);
        }
        let Body::File { data, durable } = &mut node.body else { panic!("looked before") };
        for pages in durable.iter_mut().chain([data]) {
            apply(pages, change);
        }
        node.touched(now, true);
        if cred.uid != 0 {
            node.mode &= !(SET_UID | SET_GID);
        }
        Ok(self.change(number, before))
    }

    pub(super) fn seek(&self, cred: &Cred, file: &Handle, offset: u64, what: Seek) -> Result<u64> {
        let number = self.resolve(file)?;
        let pages = self.data(cred, number, READ)?;
        what.among(offset, pages.size(), pages.data())
    }
}

fn apply(pages: &mut Pages, change: &SpaceChange) {
    let size = change.size_after(pages.size());
    if change.kind != SpaceKind::Allocate {
        pages.punch(change.range.clone());
    }
    if pages.size() < size {
        pages.set_size(size);
    }
    if change.kind != SpaceKind::Punch {
        pages.allocate(change.range.clone());
    }
}
