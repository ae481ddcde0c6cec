//! The model server itself: its tree, attributes, and data.
//!
//! Invariants:
//! - A call that fails changes nothing: it checks first, and then acts.
//! - A file's number is never reused, unless that is [requested](Server::gives_again); a
//!   directory's position never is.
//! - `nlink` is the number of names, and for directories 2 plus one for each directory inside.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};

use crate::{
    Access, Attr, Before, Change, Committed, Cred, Error, Found, Handle, Judged, RemoteLimits,
    RemoteRead, RemoteWritten, Result, SetAttr, SetTime, Stability, StatFs, Time, Verifier,
};

use super::leases::Leases;
use super::locks::Locks;
use super::node::{
    Body, Directory, EXECUTE, Node, READ, SET_GID, SET_UID, STICKY, Tells, Versions, WRITE,
};
use super::pages::Pages;
use super::xattrs::Xattrs;

pub(super) const ROOT: u64 = 1;

pub(super) struct Server {
    pub(super) limits: RemoteLimits,
    full: bool,
    /// Replies to changes do not describe the file.
    is_terse: bool,
    pub(super) leases: Leases,
    pub(super) locks: Locks,
    pub(super) nodes: HashMap<u64, Node>,
    /// Extended attributes, of nodes that have ever had some.
    xattrs: HashMap<u64, Xattrs>,
    /// Greater than every number so far.
    pub(super) next: u64,
    /// The next file gets the smallest number that is free, as with ext4.
    pub(super) gives_again: bool,
    /// Listings do not end, but continue after this position.
    pub(super) listings_lead_to: Option<u64>,
    /// Changes so far: the clock, in nanoseconds.
    ticks: u64,
    /// The time of all changes, if the test sets the clock.
    time: Option<Time>,
    /// By what it tells versions apart.
    tells: Tells,
    verifier: u64,
    /// Handles are valid only if they carry this number; see [`Server::give_new_handles`].
    generation: u32,
}

impl Server {
    pub(super) fn new(limits: RemoteLimits) -> Server {
        let mut server = Server {
            limits,
            full: false,
            is_terse: false,
            leases: Leases::default(),
            locks: Locks::default(),
            nodes: HashMap::new(),
            xattrs: HashMap::new(),
            next: ROOT,
            gives_again: false,
            listings_lead_to: None,
            ticks: 0,
            time: None,
            tells: Tells::Change,
            verifier: 1,
            generation: 0,
        };
        let mut root = server.new_node(&Cred::root(), Body::Directory(Directory::new(ROOT)));
        (root.mode, root.nlink) = (0o777, 2);
        server.nodes.insert(ROOT, root);
        server.next = ROOT + 1;
        server
    }

    pub(super) fn is_full(&self) -> bool {
        self.full
    }

    pub(super) fn set_terse(&mut self, terse: bool) {
        self.is_terse = terse;
    }

    pub(super) fn set_full(&mut self, full: bool) {
        self.full = full;
    }

    pub(super) fn restart(&mut self) {
        self.verifier += 1;
        let now = self.tick();
        for node in self.nodes.values_mut() {
            if let Body::File { data, durable } = &mut node.body
                && let Some(kept) = durable.take()
            {
                *data = kept;
                node.touched(now, true);
            }
        }
    }

    pub(super) fn set_time(&mut self, time: Time) {
        self.tells = Tells::Times;
        if self.time.replace(time).is_some() {
            return;
        }
        for node in self.nodes.values_mut() {
            node.tells = Tells::Times;
            (node.atime, node.mtime, node.ctime, node.birth) = (time, time, time, time);
        }
    }

    pub(super) fn tell_data_changes(&mut self) {
        self.tell(Tells::DataChange);
    }

    pub(super) fn tell_times(&mut self) {
        self.tell(Tells::Times);
    }

    fn tell(&mut self, tells: Tells) {
        self.tells = tells;
        for node in self.nodes.values_mut() {
            node.tells = tells;
        }
    }

    /// The number of the next file.
    pub(super) fn free_number(&self) -> u64 {
        // The search takes as long as there are files.
        let mut given = if self.gives_again { ROOT..self.next } else { 0..0 };
        given.find(|number| !self.nodes.contains_key(number)).unwrap_or(self.next)
    }

    pub(super) fn tick(&mut self) -> Time {
        if let Some(time) = self.time {
            return time;
        }
        self.ticks += 1;
        let sec = 1_000_000_000 + (self.ticks / 1_000_000_000) as i64;
        Time { sec, nsec: (self.ticks % 1_000_000_000) as u32 }
    }

    pub(super) fn new_node(&mut self, cred: &Cred, body: Body) -> Node {
        let now = self.tick();
        let (mode, nlink) = match &body {
            Body::File { .. } | Body::Special(..) => (0o644, 1),
            Body::Directory(_) => (0o755, 2),
            Body::Symlink(_) => (0o777, 1),
        };
        Node {
            mode,
            uid: cred.uid,
            gid: cred.gid,
            nlink,
            atime: now,
            mtime: now,
            ctime: now,
            birth: now,
            versions: Versions::first(),
            tells: self.tells,
            body,
        }
    }

    /// Removes a node, its data and its extended attributes.
    pub(super) fn remove_node(&mut self, number: u64) {
        self.nodes.remove(&number);
        self.xattrs.remove(&number);
    }

    /// Extended attributes of a node, if it has ever had some.
    pub(super) fn xattrs_of(&self, number: u64) -> Option<&Xattrs> {
        self.xattrs.get(&number)
    }

    pub(super) fn xattrs_mut(&mut self, number: u64) -> &mut Xattrs {
        self.xattrs.entry(number).or_default()
    }

    pub(super) fn node(&self, number: u64) -> &Node {
        &self.nodes[&number]
    }

    pub(super) fn node_mut(&mut self, number: u64) -> &mut Node {
        self.nodes.get_mut(&number).expect("numbers in the tree have nodes")
    }

    /// A handle for a number.
    pub(super) fn handle_of(&self, number: u64) -> Handle {
        Handle::new(&[&number.to_be_bytes()[..], &self.generation.to_be_bytes()].concat())
    }

    /// From now on every file has another handle.
    pub(super) fn give_new_handles(&mut self) {
        self.generation += 1;
    }

    /// The number of a file that still exists.
    pub(super) fn resolve(&self, handle: &Handle) -> Result<u64> {
        let (number, generation) = handle.as_bytes().split_first_chunk().ok_or(Error::Stale)?;
        let number = u64::from_be_bytes(*number);
        if generation != self.generation.to_be_bytes() {
            return Err(Error::Stale);
        }
        if self.nodes.contains_key(&number) { Ok(number) } else { Err(Error::Stale) }
    }

    pub(super) fn directory(&self, number: u64) -> Result<&Directory> {
        match &self.node(number).body {
            Body::Directory(directory) => Ok(directory),
            _ => Err(Error::NotDirectory),
        }
    }

    pub(super) fn directory_mut(&mut self, number: u64) -> &mut Directory {
        match &mut self.node_mut(number).body {
            Body::Directory(directory) => directory,
            _ => panic!("the caller has looked"),
        }
    }

    /// A directory in which the caller may look up `name`.
    pub(super) fn searched(&self, cred: &Cred, dir: &Handle, name: &OsStr) -> Result<u64> {
        let number = self.resolve(dir)?;
        self.directory(number)?;
        let bytes = name.as_encoded_bytes();
        if bytes.is_empty() || bytes.contains(&b'/') || bytes.contains(&0) {
            return Err(Error::InvalidArgument);
        }
        if bytes.len() > self.limits.name_max as usize {
            return Err(Error::NameTooLong);
        }
        self.node(number).need(cred, EXECUTE)?;
        Ok(number)
    }

    /// A directory in which the caller may add or remove `name`.
    pub(super) fn changed(&self, cred: &Cred, dir: &Handle, name: &OsStr) -> Result<u64> {
        let number = self.searched(cred, dir, name)?;
        if name == "." || name == ".." {
            return Err(Error::InvalidArgument);
        }
        self.node(number).need(cred, WRITE)?;
        Ok(number)
    }

    /// In a sticky directory, only the owners of the file and of the directory may take names away.
    pub(super) fn need_unstuck(&self, cred: &Cred, dir: u64, file: u64) -> Result<()> {
        let dir = self.node(dir);
        if dir.mode & STICKY != 0 && !dir.owned_by(cred) && !self.node(file).owned_by(cred) {
            return Err(Error::NotPermitted);
        }
        Ok(())
    }

    pub(super) fn change(&self, number: u64, before: Before) -> Change {
        if self.is_terse {
            return Change::default();
        }
        Change { before: Some(before), after: Some(self.node(number).attr(number)) }
    }

    pub(super) fn found(&self, number: u64) -> Found {
        Found { handle: self.handle_of(number), attr: self.node(number).attr(number) }
    }

    pub(super) fn root(&self) -> Found {
        self.found(ROOT)
    }

    pub(super) fn getattr(&self, file: &Handle) -> Result<Attr> {
        let number = self.resolve(file)?;
        Ok(self.node(number).attr(number))
    }

    pub(super) fn statfs(&self, file: &Handle) -> Result<StatFs> {
        self.resolve(file)?;
        let used: u64 = self.nodes.values().map(|node| node.attr(0).used).sum();
        let bytes = 1 << 40;
        let free = if self.full { 0 } else { bytes - used.min(bytes) };
        Ok(StatFs {
            bytes,
            bytes_free: free,
            bytes_available: free,
            files: 1 << 32,
            files_free: (1 << 32) - self.nodes.len() as u64,
            files_available: (1 << 32) - self.nodes.len() as u64,
            name_max: self.limits.name_max,
        })
    }

    pub(super) fn access(&self, cred: &Cred, file: &Handle, wanted: Access) -> Result<Judged> {
        let number = self.resolve(file)?;
        let node = self.node(number);
        let rights = node.rights(cred);
        let granted = |right, access| if rights & right != 0 { access } else { Access::NONE };
        let all = if node.is_dir() {
            granted(READ, Access::READ)
                | granted(WRITE, Access::MODIFY | Access::EXTEND | Access::DELETE)
                | granted(EXECUTE, Access::LOOKUP)
        } else {
            granted(READ, Access::READ)
                | granted(WRITE, Access::MODIFY | Access::EXTEND)
                | granted(EXECUTE, Access::EXECUTE)
        };
        Ok(Judged::new(all & wanted, Some(node.attr(number))))
    }

    pub(super) fn readlink(&self, file: &Handle) -> Result<(OsString, Option<Attr>)> {
        let number = self.resolve(file)?;
        let node = self.node(number);
        match &node.body {
            Body::Symlink(target) => Ok((target.clone(), Some(node.attr(number)))),
            _ => Err(Error::InvalidArgument),
        }
    }

    /// The data of a file, if the caller has these rights on it.
    pub(super) fn data(&self, cred: &Cred, number: u64, right: u32) -> Result<&Pages> {
        let node = self.node(number);
        match &node.body {
            Body::File { data, .. } if node.owned_by(cred) => Ok(data),
            Body::File { data, .. } => node.need(cred, right).map(|()| data),
            Body::Directory(_) => Err(Error::IsDirectory),
            Body::Symlink(_) | Body::Special(..) => Err(Error::InvalidArgument),
        }
    }

    pub(super) fn read(
        &self,
        cred: &Cred,
        file: &Handle,
        offset: u64,
        len: u32,
    ) -> Result<RemoteRead> {
        let number = self.resolve(file)?;
        // A user who may execute a file may read it: the client has to, to run it.
        let data = self.data(cred, number, READ).or_else(|_| self.data(cred, number, EXECUTE))?;
        Ok(RemoteRead {
            data: data.read(offset, len).into(),
            eof: offset.saturating_add(len.into()) >= data.size(),
            attr: Some(self.node(number).attr(number)),
        })
    }

    pub(super) fn write(
        &mut self,
        cred: &Cred,
        file: &Handle,
        offset: u64,
        bytes: &[u8],
        stability: Stability,
    ) -> Result<RemoteWritten> {
        let number = self.resolve(file)?;
        self.data(cred, number, WRITE)?;
        let end = offset.checked_add(bytes.len() as u64).ok_or(Error::FileTooLarge)?;
        match () {
            () if end > self.limits.file_size_max => return Err(Error::FileTooLarge),
            () if self.full && !bytes.is_empty() => return Err(Error::NoSpace),
            () => (),
        }
        let now = self.tick();
        let node = self.node_mut(number);
        let before = node.before();
        let Body::File { data, durable } = &mut node.body else { panic!("looked before") };
        match stability {
            Stability::Unstable => {
                durable.get_or_insert_with(|| data.clone());
            }
            Stability::Shared(_) | Stability::DataSync | Stability::FileSync => {
                if let Some(durable) = durable {
                    durable.write(offset, bytes);
                }
            }
        }
        data.write(offset, bytes);
        if !bytes.is_empty() {
            node.touched(now, true);
            if cred.uid != 0 {
                node.mode &= !(SET_UID | SET_GID);
            }
        }
        let verifier = Verifier(self.verifier);
        Ok(RemoteWritten { stability, verifier, change: self.change(number, before) })
    }

    pub(super) fn commit(&mut self, cred: &Cred, file: &Handle) -> Result<Committed> {
        let number = self.resolve(file)?;
        self.data(cred, number, WRITE)?;
        let verifier = Verifier(self.verifier);
        let node = self.node_mut(number);
        let before = node.before();
        if let Body::File { durable, .. } = &mut node.body {
            *durable = None;
        }
        Ok(Committed { verifier, change: self.change(number, before) })
    }

    pub(super) fn setattr(
        &mut self,
        cred: &Cred,
        file: &Handle,
        set: SetAttr,
        guard: Option<Time>,
    ) -> Result<Change> {
        let number = self.resolve(file)?;
        let before = self.node(number).before();
        if guard.is_some_and(|guard| guard != before.ctime) {
            return Err(Error::TryAgain);
        }
        self.may_set(cred, number, set)?;
        self.set(cred, number, set);
        Ok(self.change(number, before))
    }

    pub(super) fn may_set(&self, cred: &Cred, number: u64, set: SetAttr) -> Result<()> {
        let node = self.node(number);
        let owner = node.owned_by(cred);
        if set.mode.is_some() && !owner {
            return Err(Error::NotPermitted);
        }
        if set.uid.is_some_and(|uid| cred.uid != 0 && uid != node.uid) {
            return Err(Error::NotPermitted);
        }
        let may_give = |gid| cred.uid == 0 || (owner && (gid == node.gid || cred.in_group(gid)));
        if set.gid.is_some_and(|gid| !may_give(gid)) {
            return Err(Error::NotPermitted);
        }
        if let Some(size) = set.size {
            self.data(cred, number, WRITE)?;
            if size > self.limits.file_size_max {
                return Err(Error::FileTooLarge);
            }
        }
        for time in [set.atime, set.mtime].into_iter().flatten() {
            match time {
                SetTime::To(_) if !owner => return Err(Error::NotPermitted),
                SetTime::ServerNow if !owner => node.need(cred, WRITE)?,
                SetTime::To(_) | SetTime::ServerNow => (),
            }
        }
        Ok(())
    }

    pub(super) fn set(&mut self, cred: &Cred, number: u64, set: SetAttr) {
        if set == SetAttr::default() {
            return;
        }
        let now = self.tick();
        let node = self.node_mut(number);
        if set.uid.is_some() || set.gid.is_some() || (set.size.is_some() && cred.uid != 0) {
            if !node.is_dir() {
                node.mode &= !(SET_UID | SET_GID);
            }
            node.uid = set.uid.unwrap_or(node.uid);
            node.gid = set.gid.unwrap_or(node.gid);
        }
        if let Some(mode) = set.mode {
            let foreign = cred.uid != 0 && !cred.in_group(node.gid);
            node.mode = mode & 0o7777 & if foreign { !SET_GID } else { !0 };
        }
        if let (Some(size), Body::File { data, durable }) = (set.size, &mut node.body) {
            data.set_size(size);
            if let Some(durable) = durable {
                durable.set_size(size);
            }
        }
        node.touched(now, set.size.is_some());
        let time = |set| match set {
            SetTime::ServerNow => now,
            SetTime::To(time) => time,
        };
        node.atime = set.atime.map_or(node.atime, time);
        node.mtime = set.mtime.map_or(node.mtime, time);
    }
}
