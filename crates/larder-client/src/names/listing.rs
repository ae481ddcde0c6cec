//! Directory listings: read in pages, one reply of the server each, and cached as such.
//!
//! A cached listing is trusted while its directory is in the epoch in which it was requested and no
//! change of our own has touched the directory since. A listing that was requested while such a
//! change was in flight is not cached, and a reader that begins while one is asks the server: the
//! cached listing may already be wrong about the name. So does a reader that begins without a lease
//! where the server grants them, whether it opened the directory or not (a client of an export does
//! not). Positions are the server's cookies, so a
//! reader continues where it was, whether its next entries come from a cached page or from the
//! server.

use std::ffi::OsStr;
use std::ops::Range;
use std::sync::Arc;

use larder_io::Monotonic;
use larder_vfs::{
    Access, Cookie, Cred, DirEntry, Error, Found, Handle, Ino, Lease, Listing, Result,
};

use super::ahead::{PAGE_BYTES, Read};
use super::pages::Sought;
use super::recover::on_handle;
use super::walk::GoesRound;
use super::whole::NamesOfPage;
use crate::core::Core;
use crate::journal::{ListingState, Page, PageEntry, Record, name_bytes};
use crate::node::Node;

/// Largest reply that we ask for, in bytes.
const REPLY_BYTES_MAX: u32 = 256 << 10;

/// Bytes that an entry takes in a FUSE reply besides its name: `fuse_dirent`, and what
/// `fuse_direntplus` adds to it.
const DIRENT_BYTES: u32 = 24;
const ENTRY_BYTES: u32 = 128;

/// If more entries of a page than this have stale attributes and attributes are wanted, one request
/// for the page is cheaper than one for each.
const STALE_ENTRIES_MAX: usize = 2;

impl Core {
    /// Checks that the caller may list the directory, and that what is cached of it is fresh
    /// enough. One that was removed here, and that a process still works in, has no entries: the
    /// server is not asked about it.
    pub(crate) async fn opendir(&self, cred: &Cred, ino: Ino) -> Result<()> {
        let dir = self.node(ino)?;
        if dir.state().is_removed_directory() {
            let granted = self.rights_as_held(&dir, cred, Access::READ);
            return if granted == Access::READ { Ok(()) } else { Err(Error::AccessDenied) };
        }
        self.demand_path(&dir, cred).await?;
        let asks = !self.is_fresh(&dir) || self.wants_lease(&dir);
        let read = self.demand(&dir, cred, Access::READ, asks).await;
        if !dir.state().is_directory() {
            return Err(Error::NotDirectory);
        }
        read
    }

    /// Entries after `offset`, without the hidden names of files that are open here. None at the
    /// end of the directory.
    pub(crate) async fn readdir(
        self: &Arc<Self>,
        cred: &Cred,
        ino: Ino,
        mut offset: u64,
        bytes_max: u32,
        plus: bool,
    ) -> Result<Vec<DirEntry>> {
        loop {
            let dir = self.node(ino)?;
            // Those that are removed in the meantime, too.
            let mut hidden = dir.state().hidden().inside().clone();
            let mut entries = self.listed(cred, ino, offset, bytes_max, plus).await?;
            let Some(last) = entries.last().map(|entry| entry.offset) else { return Ok(entries) };
            hidden.extend(dir.state().hidden().inside().iter().cloned());
            entries.retain(|entry| !hidden.contains(&entry.name));
            if !entries.is_empty() {
                return Ok(entries);
            }
            offset = last;
        }
    }

    /// Entries after `offset`, as the server lists them.
    async fn listed(
        self: &Arc<Self>,
        cred: &Cred,
        ino: Ino,
        offset: u64,
        bytes_max: u32,
        plus: bool,
    ) -> Result<Vec<DirEntry>> {
        let (dir, begun) = (self.node(ino)?, self.now());
        if offset == 0 && self.wants_lease(&dir) {
            // Without a lease, we would not be notified when the listing is no longer true.
            self.ask_rights(&dir, cred).await?;
        } else if offset == 0 && !self.is_fresh(&dir) {
            self.revalidate(&dir, cred).await?;
        }
        let is_changing = offset == 0 && dir.state().changing() && self.remote.reachable();
        let is_changing = is_changing || self.outdates_listings();
        let held = match is_changing {
            true => dir.state().listed().lent_after(offset).cloned(),
            false => self.held_page(&dir, offset),
        };
        let page = match held {
            Some(page) if !(plus && self.is_stale(page.given(offset, bytes_max, plus))) => {
                if offset == 0 {
                    // An earlier page must not be what this reader continues in.
                    dir.state().listed_mut().end_loan();
                }
                page
            }
            held => {
                match self.fetch_page(&dir, cred, (offset, REPLY_BYTES_MAX), held.as_deref()).await
                {
                    // A page that was read again may lack this reader's position: the reader
                    // continues with the earlier page.
                    Ok(page) => held.filter(|_| page.position_of(offset).is_none()).unwrap_or(page),
                    Err(Error::TimedOut) => held.ok_or(Error::TimedOut)?,
                    Err(error) => return Err(error),
                }
            }
        };
        let given = page.given(offset, bytes_max, plus);
        let entries = self.entries(&dir, given, (plus, begun));
        let next = entries.last().map(|entry| entry.offset);
        dir.state().listed_mut().step(offset, next).map_err(|GoesRound| {
            tracing::warn!(dir = dir.ino.0, offset, "the server lists a directory in a circle");
            Error::Io
        })?;
        Ok(entries)
    }

    /// A page with the entries after `offset` that a reader may be given.
    fn held_page(&self, dir: &Node, offset: u64) -> Option<Arc<Page>> {
        let (sought, lent) = {
            let mut state = dir.state();
            let cached = state.listing().map_or(0, |head| head.pages);
            if let Some(page) = state.listed_mut().pages().holding(offset).filter(|_| cached > 0) {
                return Some(page);
            }
            let lent = state.listed().lent_after(offset).cloned();
            (state.listed_mut().pages().sought(offset, cached), lent)
        };
        // A reader that was given the beginning of a page continues in that page.
        if matches!(sought, Sought::Among(_)) && lent.is_some() {
            return lent;
        }
        self.page_among(dir, sought.numbers(), offset).or(lent)
    }

    /// The one of these cached pages with the entries after `offset`.
    fn page_among(&self, dir: &Node, numbers: Range<u32>, offset: u64) -> Option<Arc<Page>> {
        for number in numbers {
            let page = Arc::new(Page::decode(&self.cache.listing(dir.no(), number)?)?);
            if page.holds(offset) {
                let mut state = dir.state();
                if state.listing().is_some_and(|head| number < head.pages) {
                    state.listed_mut().pages().used(number, &page);
                }
                drop(state);
                return Some(page);
            }
        }
        None
    }

    fn is_stale(&self, entries: &[PageEntry]) -> bool {
        let stale = entries.iter().filter(|entry| {
            let child = entry.child.and_then(|ino| self.table.get(ino));
            !child.is_some_and(|child| self.is_fresh(&child))
        });
        self.remote.reachable() && stale.take(STALE_ENTRIES_MAX + 1).count() > STALE_ENTRIES_MAX
    }

    /// A file is opened. Where the server gives leases, the reply to the lookup of its name brought
    /// what the open needs: such lookups are no reason to list the directory.
    pub(crate) fn opened_after_lookup(&self, node: &Node) {
        if self.remote.gives_leases() {
            let dir = node.state().known().hint.as_ref().map(|(dir, _)| *dir);
            if let Some(dir) = dir.and_then(|dir| self.table.get(dir)) {
                dir.state().listed_mut().ahead().opened();
            }
        }
    }

    /// Reads a page of the listing in place of looking up one name, if that is worth while
    /// ([`super::ahead`]). Returns whether it did.
    ///
    /// # Errors
    /// Those of asking for the directory; [`Error::TimedOut`]: the server does not answer.
    pub(super) async fn list_ahead(&self, dir: &Arc<Node>, cred: &Cred) -> Result<bool> {
        let position = {
            let mut state = dir.state();
            let epoch = state.known().epoch;
            state.listed_mut().ahead().ask(epoch)
        };
        let Some(position) = position else { return Ok(false) };
        let mut reading = ReadingAhead { dir, read: Read::Nothing };
        // Without a lease, the listing would not tell which names there are not.
        if self.wants_lease(dir) && self.ask_rights(dir, cred).await?.is_none() {
            return Err(Error::TimedOut);
        }
        match self.fetch_page(dir, cred, (position, PAGE_BYTES), None).await {
            Ok(page) => {
                let names = u32::try_from(page.entries.len()).unwrap_or(u32::MAX);
                reading.read = Read::Page { names, next: page.next() };
                Ok(true)
            }
            Err(Error::TimedOut) => Err(Error::TimedOut),
            // The caller may look names up, and not list them; or the question for the name says
            // what is wrong.
            Err(_) => Ok(false),
        }
    }

    /// Asks the server for about so many bytes of entries after `offset` (or for a cached page
    /// again).
    async fn fetch_page(
        &self,
        dir: &Arc<Node>,
        cred: &Cred,
        (offset, bytes_max): (u64, u32),
        held: Option<&Page>,
    ) -> Result<Arc<Page>> {
        let start = held.map_or(offset, |page| page.start);
        let verifier = if start == 0 { 0 } else { dir.state().known().cookie_verifier };
        let cookie = Cookie { position: start, verifier };
        let bytes = self.remote.limits().readdir_preferred.clamp(PAGE_BYTES, bytes_max);
        let lease = dir.state().early_lease().cloned();
        let (asked, epoch) = (self.now(), dir.state().known().epoch);
        let listing: Listing = on_handle!(self, cred, dir, handle =>
            self.remote.readdir(cred, &handle, cookie, bytes))?;
        let epoch = self.observe_names(dir, listing.dir, (asked, epoch));
        let page = Arc::new(self.take_in(dir, start, listing, (asked, epoch)));
        let is_late = dir.state().changed_since(asked) || self.outdates_listings();
        if let Some(lease) = lease {
            self.learn_names(dir, &page, &lease, asked);
        }
        self.know_verifier(dir, page.verifier);
        match epoch.filter(|_| !is_late) {
            None => dir.state().listed_mut().lend(page.clone()),
            Some(epoch) => self.keep_page(dir, &page, epoch),
        }
        Ok(page)
    }

    /// Takes in an entry that a listing described, which is of this epoch of the directory, if it
    /// is of any that we know.
    pub(crate) fn learn_listed(
        &self,
        dir: &Node,
        name: &OsStr,
        found: &Found,
        (asked, epoch): (Monotonic, Option<u64>),
    ) -> Arc<Node> {
        let child = self.learn(found, asked, Some((dir.ino, name.to_owned())));
        // For names that we changed in the meantime, this listing is less reliable than what we
        // know.
        if let Some(epoch) = epoch.filter(|_| !dir.state().changed_since(asked)) {
            self.put_name_of(dir, name, Some(child.ino), epoch);
        }
        child
    }

    fn take_in(
        &self,
        dir: &Node,
        start: u64,
        listing: Listing,
        asked: (Monotonic, Option<u64>),
    ) -> Page {
        let entries = listing.entries.into_iter().map(|listed| {
            let child = listed.handle.zip(listed.attr).map(|(handle, mut attr)| {
                if !listed.tells_links {
                    attr.nlink = self.known_links(&handle).unwrap_or(attr.nlink);
                }
                self.learn_listed(dir, &listed.name, &Found { handle, attr }, asked).ino
            });
            PageEntry {
                name: listed.name,
                fileid: listed.fileid,
                kind: listed.attr.map(|attr| attr.kind),
                position: listed.position,
                child,
            }
        });
        let entries = entries.collect();
        Page { start, verifier: listing.verifier, eof: listing.eof, entries }
    }

    /// Takes in which names there are, if a page that was `asked` for under a lease is true now.
    fn learn_names(&self, dir: &Node, page: &Page, lease: &Lease, asked: Monotonic) {
        let mut state = dir.state();
        if state.vouched_since(lease, asked) {
            state.whole_mut().take(NamesOfPage {
                start: page.start,
                verifier: page.verifier,
                names: page.entries.iter().map(|entry| name_bytes(&entry.name)),
                next: page.next(),
                room: &self.room_of_names,
            });
        }
    }

    /// How many links a file was last known to have.
    fn known_links(&self, handle: &Handle) -> Option<u32> {
        let ino = Ino(self.cache.number_of(handle.as_bytes())?.0);
        Some(self.table.get(ino)?.state().known().attr.nlink)
    }

    /// Positions are the server's together with this.
    fn know_verifier(&self, dir: &Node, verifier: u64) {
        let mut state = dir.state();
        if state.set_cookie_verifier(verifier) {
            self.table.persist(dir.ino, &mut state);
        }
    }

    /// Keeps a page if it follows the cached ones directly.
    fn keep_page(&self, dir: &Node, page: &Arc<Page>, epoch: u64) {
        let mut state = dir.state();
        if state.known().epoch != epoch {
            return state.listed_mut().lend(page.clone());
        }
        let cached = state.listing().map_or(0, |head| head.pages);
        let Some((number, pages)) = state.listed_mut().pages().keep(page, cached) else {
            return state.listed_mut().lend(page.clone());
        };
        state.listed_mut().end_loan();
        let complete = page.eof;
        state.set_listing(ListingState { epoch, pages, complete, is_changed: false });
        self.table.persist(dir.ino, &mut state);
        drop(state);
        self.cache.put_listing(dir.no(), number, &page.encode());
    }

    /// Entries as the front door gets them. A file is described if its attributes are fresh, or
    /// are from a reply to this very reader, who `begun` then: without an attribute cache, no
    /// others are.
    fn entries(
        &self,
        dir: &Node,
        entries: &[PageEntry],
        (plus, begun): (bool, Monotonic),
    ) -> Vec<DirEntry> {
        let is_known = |child: &Arc<Node>| {
            self.is_fresh(child) || child.state().is_described_since(self.session, begun)
        };
        let told = entries.iter().map(|entry| {
            let child = entry.child.filter(|_| plus).and_then(|ino| self.table.get(ino));
            DirEntry {
                name: entry.name.clone(),
                fileid: entry.fileid,
                kind: entry.kind,
                offset: entry.position,
                entry: child.filter(is_known).map(|child| self.entry(dir, &child)),
                // A server without leases leaves attributes out for other reasons.
                is_elsewhere: entry.child.is_none() && self.remote.gives_leases(),
            }
        });
        told.collect()
    }
}

/// A page that is read in place of looking up one name. It ends even if its caller is gone.
struct ReadingAhead<'a> {
    dir: &'a Node,
    read: Read,
}

impl Drop for ReadingAhead<'_> {
    fn drop(&mut self) {
        self.dir.state().listed_mut().ahead().end(self.read);
    }
}

impl Page {
    /// The entries after a position that fit in a reply: at least one, if there is one.
    fn given(&self, offset: u64, bytes_max: u32, plus: bool) -> &[PageEntry] {
        let rest = &self.entries[self.position_of(offset).unwrap_or(0)..];
        let fixed = if plus { DIRENT_BYTES + ENTRY_BYTES } else { DIRENT_BYTES };
        let mut room = bytes_max;
        let fits = rest.iter().take_while(|entry| {
            let name_bytes = u32::try_from(entry.name.len()).unwrap_or(u32::MAX);
            let bytes = fixed.saturating_add(name_bytes).next_multiple_of(8);
            let has_room = bytes <= room;
            room = room.saturating_sub(bytes);
            has_room
        });
        let count = fits.count().max(1).min(rest.len());
        &rest[..count]
    }
}
