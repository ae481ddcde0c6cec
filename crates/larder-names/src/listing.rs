//! Lists directories: the server's entries, and the waiting ones.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::OsString;
use std::sync::Arc;

use larder_vfs::{Cookie, Cred, Error, Handle, Held, Kind, Listed, Listing, Result};

use crate::object::{Dentry, Dir, ObjectNo, has_rights};
use crate::shared::{Shared, Target};
use crate::which::Which;

/// Positions of waiting names have these bits. If a server's positions reach them, waiting objects
/// of the directory are made at the server before it is listed.
const WAITING_POSITION: u64 = 0x7ffe_ffff << 32;
/// Of these, those of names that the server has and did not list yet: no object has such a number.
const ADDED_FROM: u64 = 1 << 31;
/// Which bits these are.
const POSITION_BITS: u64 = 0xffff_ffff << 32;

impl Shared {
    /// The entries of a directory that are listed here, after the server's: waiting objects, and
    /// objects that were waiting in an earlier listing. A name keeps its position when the server
    /// gets the object, so that a reader in the middle of the directory neither misses it nor sees
    /// it twice.
    fn listed_here(&self, dir: &Dir, after: Option<ObjectNo>) -> Vec<Listed> {
        let mut state = self.state();
        let waiting = state.journal().waiting_in(dir).map(|(_, no)| no);
        let moved = state.journal().taken().in_dir(dir).map(|(_, no)| no);
        let linked = state.journal().links().in_dir(dir).map(|(_, no)| no);
        let now: BTreeSet<ObjectNo> = waiting.chain(moved).chain(linked).collect();
        let mut all = state.list(dir, now);
        all.retain(|no| after.is_none_or(|after| *no > after));
        let is_here = |dentry: &Dentry| dentry.dir == *dir;
        all.into_iter()
            .filter_map(|no| {
                let position = WAITING_POSITION | no.0;
                if let Some(moved) = state.journal().taken().get(no) {
                    let dentry = moved.dentry.as_ref().filter(|dentry| is_here(dentry))?;
                    return Some(Listed {
                        name: dentry.name.clone(),
                        fileid: moved.fileid,
                        position,
                        attr: None,
                        tells_links: true,
                        handle: None,
                    });
                }
                if let Some(linked) = state.journal().links().get(no) {
                    let found = match linked.file {
                        Dir::Made(file) => state.found(file),
                        Dir::Server(_) => None,
                    };
                    let (handle, attr) = found.map(|found| (found.handle, found.attr)).unzip();
                    return Some(Listed {
                        name: linked.dentry.name.clone(),
                        fileid: linked.fileid,
                        position,
                        attr,
                        tells_links: true,
                        handle,
                    });
                }
                let dentry = state.journal().dentry_of(no).filter(|dentry| is_here(dentry))?;
                // It was removed here, or moved: the server's name stands for nothing.
                let is_named = state.journal().named(no).is_some();
                if is_named && state.journal().taken().from(dir, &dentry.name).is_some() {
                    return None;
                }
                Some(Listed {
                    name: dentry.name.clone(),
                    fileid: no.fileid(),
                    position,
                    attr: state.attr(no),
                    tells_links: true,
                    handle: Some(state.journal().handle(no)),
                })
            })
            .collect()
    }

    /// A page of the server's, as applications see it.
    fn show_listing(&self, dir: &Handle, mut listing: Listing) -> Listing {
        listing.dir = listing.dir.map(|attr| self.show(dir, attr));
        // A page must say where the next one begins.
        if listing.eof || listing.entries.iter().any(|entry| !self.is_own_name(&entry.name)) {
            listing.entries.retain(|entry| !self.is_own_name(&entry.name));
        }
        for listed in &mut listing.entries {
            let made = {
                let state = self.state();
                match &listed.handle {
                    Some(handle) => state.journal().of_server(handle),
                    None => state.journal().of_fileid(listed.fileid),
                }
            };
            listed.fileid = made.map_or(listed.fileid, ObjectNo::fileid);
            match &listed.handle {
                Some(handle) => {
                    let told = listed.attr.filter(|_| self.version_in_doubt(handle).is_none());
                    listed.attr = told.map(|attr| self.show(handle, attr));
                    listed.handle = Some(self.known_as(handle));
                }
                None => listed.attr = None,
            }
        }
        listing
    }

    /// Lists a directory of the server that has waiting objects: the rest of the server's entries,
    /// and then the waiting ones.
    async fn list_both(
        self: &Arc<Self>,
        cred: &Cred,
        (dir, server): (&Handle, &Handle),
        mut cookie: Cookie,
        bytes_max: u32,
    ) -> Result<Listing> {
        let (key, begin) = (self.state().journal().dir(dir), cookie);
        // An object that is made at the server from now on is in one of the two.
        let mut waiting = self.listed_here(&key, None);
        // What was taken away here by now is not listed, although the server may lose it only after
        // it has said that it has it.
        let names = self.other_names(&key, &waiting);
        let mut all = Listing { entries: Vec::new(), eof: true, verifier: 0, dir: None };
        loop {
            let page = self.remote.readdir(cred, server, cookie, bytes_max).await?;
            if page.entries.iter().any(|entry| is_waiting_position(entry.position)) {
                self.replay_which(&Which::All).await?;
                let page = self.remote.readdir(cred, server, begin, bytes_max).await?;
                return Ok(self.show_listing(dir, page));
            }
            let last = page.entries.last().map(|entry| entry.position);
            let page = self.show_listing(dir, page);
            (all.verifier, all.dir) = (page.verifier, page.dir.or(all.dir));
            all.entries.extend(page.entries);
            if page.eof {
                break;
            }
            cookie = Cookie { position: last.ok_or(Error::Io)?, verifier: page.verifier };
        }
        // A waiting object is what its name stands for, whatever the server has under that name.
        let (replaced, rest) =
            all.entries.into_iter().partition(|entry| names.contains(&entry.name));
        all.entries = rest;
        let mut there: HashMap<OsString, Listed> =
            replaced.into_iter().map(|entry| (entry.name.clone(), entry)).collect();
        waiting.retain_mut(|entry| {
            // What the server had before this listing began, another client may have changed. If
            // the listing goes on from an earlier page, the server's entry may have been in that.
            let is_whole = begin.position == 0;
            let is_at_server = is_whole && entry.attr.is_none() && entry.handle.is_some();
            let there = there.remove(&entry.name).filter(|_| entry.attr.is_none());
            match there.filter(|there| is_at_server || there.fileid == entry.fileid) {
                Some(there) => *entry = Listed { position: entry.position, ..there },
                None if is_at_server => return false,
                None => {}
            }
            true
        });
        all.entries.extend(waiting);
        Ok(all)
    }

    /// Names in a directory that stand for something else than at the server, or for nothing.
    fn other_names(&self, dir: &Dir, waiting: &[Listed]) -> HashSet<OsString> {
        let state = self.state();
        let taken = state.journal().taken().origins_in(dir).map(|(name, _)| name.to_owned());
        waiting.iter().map(|entry| entry.name.clone()).chain(taken).collect()
    }

    /// Lists a directory of the server while that is out of reach: the cached entries, and the
    /// waiting ones.
    ///
    /// # Errors
    /// [`Error::TimedOut`] if not all of it is cached.
    fn list_held(&self, held: &dyn Held, dir: &Handle, cookie: Cookie) -> Result<Listing> {
        let mut entries = held.held_entries(dir).ok_or(Error::TimedOut)?;
        let key = self.state().journal().dir(dir);
        let mut waiting = self.listed_here(&key, None);
        let names = self.other_names(&key, &waiting);
        entries.retain(|entry| !self.is_own_name(&entry.name));
        let (replaced, rest) = entries.into_iter().partition(|entry| names.contains(&entry.name));
        entries = rest;
        described(&mut waiting, replaced);
        let (mut added, listed): (Vec<_>, Vec<_>) =
            entries.into_iter().partition(|entry| entry.position == 0);
        for (position, entry) in (WAITING_POSITION | ADDED_FROM..).zip(&mut added) {
            entry.position = position;
        }
        entries = listed.into_iter().chain(waiting).chain(added).collect();
        if cookie.position != 0 {
            let at = entries.iter().position(|entry| entry.position == cookie.position);
            let begin = match at {
                Some(at) => at + 1,
                // It was removed since.
                None if is_waiting_position(cookie.position) => {
                    let is_behind = |entry: &Listed| {
                        is_waiting_position(entry.position) && entry.position > cookie.position
                    };
                    entries.iter().position(is_behind).unwrap_or(entries.len())
                }
                None => return Err(Error::BadCookie),
            };
            drop(entries.drain(..begin));
        }
        let (verifier, dir) = (cookie.verifier, self.state().dir_attr(&key));
        Ok(Listing { entries, eof: true, verifier, dir })
    }

    pub(crate) async fn list(
        self: &Arc<Self>,
        cred: &Cred,
        dir: &Handle,
        cookie: Cookie,
        bytes_max: u32,
    ) -> Result<Listing> {
        let is_here = is_waiting_position(cookie.position);
        let after = is_here.then_some(ObjectNo(cookie.position & !POSITION_BITS));
        let (key, waits) = {
            let state = self.state();
            let key = state.journal().dir(dir);
            let waits = state.journal().is_changed(&key) || state.has_listed(&key);
            (key, waits)
        };
        let server = match self.target(dir)? {
            Target::Waiting(no) => {
                let attr = self.state().attr(no);
                if attr.is_none_or(|attr| attr.kind != Kind::Directory) {
                    return Err(Error::NotDirectory);
                }
                if !attr.is_some_and(|attr| has_rights(&attr, cred, 4)) {
                    return Err(Error::AccessDenied);
                }
                let (entries, verifier) = (self.listed_here(&key, after), cookie.verifier);
                return Ok(Listing { entries, eof: true, verifier, dir: attr });
            }
            Target::Server(server) => server,
        };
        if let Some(held) = self.held() {
            match self.list_held(&*held, dir, cookie) {
                Err(Error::TimedOut) if after.is_some() => {}
                answer => return answer,
            }
        }
        if after.is_some() {
            let (entries, verifier) = (self.listed_here(&key, after), cookie.verifier);
            return Ok(Listing { entries, eof: true, verifier, dir: None });
        }
        if waits {
            return self.list_both(cred, (dir, &server), cookie, bytes_max).await;
        }
        let listing = self.remote.readdir(cred, &server, cookie, bytes_max).await?;
        Ok(self.show_listing(dir, listing))
    }
}

/// Applies the server's descriptions to those entries of `waiting` that it has by now.
fn described(waiting: &mut [Listed], server: Vec<Listed>) {
    let mut server: HashMap<u64, Listed> =
        server.into_iter().map(|entry| (entry.fileid, entry)).collect();
    for entry in waiting.iter_mut().filter(|entry| entry.attr.is_none()) {
        if let Some(there) = server.remove(&entry.fileid).filter(|there| there.name == entry.name) {
            *entry = Listed { position: entry.position, ..there };
        }
    }
}

fn is_waiting_position(position: u64) -> bool {
    position & POSITION_BITS == WAITING_POSITION
}
