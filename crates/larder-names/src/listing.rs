//! Lists directories: the server's entries, and the waiting ones.

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsString;
use std::sync::Arc;

use larder_vfs::{Cookie, Cred, Error, Handle, Kind, Listed, Listing, Result};

use crate::deferred::has_rights;
use crate::object::{Dir, ObjectNo, Place};
use crate::shared::{Shared, Target};

/// Positions of names that wait have these bits. A server whose positions come so far is given what
/// waits in the directory before it is listed.
const WAITING_POSITION: u64 = 0x7ffe_ffff << 32;
/// Which bits these are.
const POSITION_BITS: u64 = 0xffff_ffff << 32;

impl Shared {
    /// What waits is listed here: entries of a directory from a position on. A listing that goes on
    /// has what waited when it began and is at the server now, where that is not listed any more.
    fn listed_here(&self, dir: &Dir, after: Option<ObjectNo>) -> Vec<Listed> {
        let mut state = self.state();
        let waiting = state.journal().waiting_in(dir).map(|(_, no)| no);
        let mut all: BTreeSet<ObjectNo> = waiting.collect();
        match after {
            None => state.begin_listing(dir, &all),
            Some(after) => {
                all.extend(state.listed(dir));
                all.retain(|no| *no > after);
            }
        }
        let is_here = |place: &Place| place.dir == *dir;
        all.into_iter()
            .filter_map(|no| {
                let place = &state.journal().get(no).filter(|object| is_here(&object.place))?.place;
                Some(Listed {
                    name: place.name.clone(),
                    fileid: no.fileid(),
                    position: WAITING_POSITION | no.0,
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
                    listed.attr = listed.attr.map(|attr| self.show(handle, attr));
                    listed.handle = Some(self.known_as(handle));
                }
                None => listed.attr = None,
            }
        }
        listing
    }

    /// Lists a directory of the server in which something waits: the rest of what the server has,
    /// and what waits after that.
    async fn list_both(
        self: &Arc<Self>,
        cred: &Cred,
        (dir, server): (&Handle, &Handle),
        mut cookie: Cookie,
        bytes_max: u32,
    ) -> Result<Listing> {
        let (key, begin) = (self.state().journal().dir(dir), cookie);
        // What is made at the server from now on is in one of both.
        let waiting = self.listed_here(&key, None);
        let mut all = Listing { entries: Vec::new(), eof: true, verifier: 0, dir: None };
        loop {
            let page = self.remote.readdir(cred, server, cookie, bytes_max).await?;
            if page.entries.iter().any(|entry| is_waiting_position(entry.position)) {
                self.settle_all(None).await?;
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
        // What waits is what its name stands for, whatever the server has under that.
        let names: HashSet<OsString> = waiting.iter().map(|entry| entry.name.clone()).collect();
        all.entries.retain(|entry| !names.contains(&entry.name));
        all.entries.extend(waiting);
        Ok(all)
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
            let waits = state.journal().waiting_in(&key).next().is_some();
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

fn is_waiting_position(position: u64) -> bool {
    position & POSITION_BITS == WAITING_POSITION
}
