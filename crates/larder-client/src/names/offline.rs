//! The cached names of the server, for the code that answers in the server's place while that is
//! out of reach ([`larder_vfs::Held`]): the names and listings of a directory's present epoch, with
//! what has changed here since.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;

use larder_vfs::{Attr, Change, Error, Found, Future, Handle, Held, Ino, Listed};

use crate::core::Core;
use crate::journal::{Name, Page, PageEntry, Record};
use crate::node::Node;

impl Core {
    /// Whether all names of a directory are known, and this is none of them.
    pub(super) fn is_unlisted(&self, dir: &Node, name: &OsStr) -> bool {
        self.held_pages(dir).is_some_and(|pages| {
            !pages.iter().flat_map(|page| &page.entries).any(|entry| entry.name == name)
        })
    }

    /// Puts on record what a name stands for, where the journal of names knows better: a process
    /// may have died between a change of the name and its record. `None`: the journal's answer is
    /// an object that is not known here, so that must be asked.
    pub(super) fn correct_name(&self, dir: &Node, name: &OsStr) -> Option<()> {
        let (Some(here), Ok(handle)) = (self.remote.deferring(), dir.handle()) else {
            return Some(());
        };
        let child = self.name(dir, name).and_then(|held| self.table.get(held.child?));
        let child = child.and_then(|child| child.handle().ok());
        let Some(told) = here.name_here(&handle, name, child.as_ref()) else { return Some(()) };
        if told != child || self.name(dir, name).is_none() {
            let child = match told {
                Some(told) => Some(Ino(self.cache.number_of(told.as_bytes())?.0)),
                None => None,
            };
            self.put_name(dir, name, child);
        }
        Some(())
    }

    /// The whole listing of a directory as the server last gave it, if it is cached.
    fn held_pages(&self, dir: &Node) -> Option<Vec<Page>> {
        let head = {
            let state = dir.state();
            state.known().listing.filter(|head| head.epoch == state.known().epoch)?
        };
        if !head.complete {
            return None;
        }
        let page = |number| Page::decode(&self.cache.listing(dir.no(), number)?);
        (0..head.pages).map(page).collect()
    }

    pub(crate) fn held_node(&self, file: &Handle) -> Option<std::sync::Arc<Node>> {
        let no = self.cache.number_of(file.as_bytes())?;
        self.table.get(Ino(no.0))
    }

    /// Names that are known and not in a listing of their directory: they were made here since.
    /// Their position is 0.
    fn unlisted_entries(&self, dir: &Node, listed: &[Listed]) -> Vec<Listed> {
        let listed: HashSet<&OsStr> = listed.iter().map(|entry| entry.name.as_os_str()).collect();
        let epoch = dir.state().known().epoch;
        let known = self.cache.names_in(dir.no()).into_iter().filter_map(|(name, record)| {
            let held = Name::decode(&record).filter(|held| held.epoch == epoch)?;
            let name = OsString::from_vec(name);
            let child = held.child.filter(|_| !listed.contains(name.as_os_str()))?;
            let entry = PageEntry { name, fileid: 0, kind: None, position: 0, child: Some(child) };
            self.held_entry(dir, entry).filter(|entry| entry.handle.is_some())
        });
        known.collect()
    }

    /// An entry of a listing as it is now; `None` if it no longer exists. Its attributes are the
    /// server's, and the caller treats them as such.
    fn held_entry(&self, dir: &Node, entry: PageEntry) -> Option<Listed> {
        let child = match self.name(dir, &entry.name) {
            Some(name) => Some(name.child?),
            None => entry.child,
        };
        let node = child.and_then(|ino| self.table.get(ino));
        let about = node.and_then(|node| Some((node.handle().ok()?, node.state().known().attr)));
        let (handle, attr) = about.unzip();
        Some(Listed {
            fileid: attr.map_or(entry.fileid, |attr: Attr| attr.fileid),
            name: entry.name,
            position: entry.position,
            attr,
            tells_links: true,
            handle,
        })
    }
}

impl Held for Core {
    fn held(&self, file: &Handle) -> Option<Attr> {
        Some(self.held_node(file)?.state().known().attr)
    }

    fn is_ctime_old(&self, file: &Handle) -> bool {
        self.held_node(file).is_some_and(|node| node.state().ctime_is_old())
    }

    fn ctime_moves(&self, file: &Handle) {
        if let Some(node) = self.held_node(file) {
            node.state().move_ctime(self.now());
        }
    }

    fn changed_here(&self, file: &Handle, attr: Attr) {
        // Requests that are under way describe the file when they are answered.
        if let Some(node) = self.held_node(file).filter(|node| !node.state().changing()) {
            self.begin_change(&node);
            self.end_change(&node, [Change { before: None, after: Some(attr) }]);
        }
    }

    fn has_unsent(&self, file: &Handle) -> bool {
        self.held_node(file).is_some_and(|node| node.state().may_have_unsent())
    }

    fn removed_here(&self, file: &Handle) {
        if let Some(node) = self.held_node(file) {
            self.gone(&node);
        }
    }

    fn held_name(&self, dir: &Handle, name: &OsStr) -> Option<Option<Found>> {
        let dir = self.held_node(dir)?;
        let Some(held) = self.name(&dir, name) else {
            return self.is_unlisted(&dir, name).then_some(None);
        };
        let Some(child) = held.child else { return Some(None) };
        let child = self.table.get(child)?;
        let found = Found { handle: child.handle().ok()?, attr: child.state().known().attr };
        Some(Some(found))
    }

    fn last_seen(&self, file: &Handle) -> Option<(Handle, OsString)> {
        let (dir, name) = self.held_node(file)?.state().known().hint.clone()?;
        Some((self.table.get(dir)?.handle().ok()?, name))
    }

    fn is_root(&self, file: &Handle) -> bool {
        self.held_node(file).is_some_and(|node| node.ino == Ino::ROOT)
    }

    fn bring<'a>(&'a self, file: &'a Handle) -> Future<'a, ()> {
        Box::pin(async move {
            let Some(node) = self.held_node(file) else { return Ok(()) };
            match self.upload(&node, self.deadline()).await {
                // If the file now belongs to another client, our bytes are set aside, and nothing
                // is left to send.
                Err(Error::Changed) => Ok(()),
                sent => sent,
            }
        })
    }

    fn bring_limited<'a>(&'a self, file: &'a Handle) -> Future<'a, ()> {
        Box::pin(async move {
            let Some(node) = self.held_node(file) else { return Ok(()) };
            self.upload_limited(&node).await
        })
    }

    fn held_entries(&self, dir: &Handle) -> Option<Vec<Listed>> {
        let dir = self.held_node(dir)?;
        let entries = self.held_pages(&dir)?.into_iter().flat_map(|page| page.entries);
        let mut all: Vec<_> = entries.filter_map(|entry| self.held_entry(&dir, entry)).collect();
        all.extend(self.unlisted_entries(&dir, &all));
        Some(all)
    }
}
