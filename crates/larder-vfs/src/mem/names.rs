//! The model's operations on names.

use std::ffi::OsStr;
use std::ops::Bound;

use crate::{
    Attr, Change, Cookie, Cred, Device, Error, Handle, Kind, Listed, Listing, LookedUp, Made, New,
    Removal, Result, SetAttr,
};

use super::node::{Body, Directory, READ, SET_GID, WRITE};
use super::pages::Pages;
use super::server::{ROOT, Server};

const COOKIE_VERIFIER: u64 = 0x6c61_7264;
const TARGET_LEN_MAX: usize = 4095;

impl Server {
    pub(super) fn lookup(&self, cred: &Cred, dir: &Handle, name: &OsStr) -> Result<LookedUp> {
        let number = self.searched(cred, dir, name)?;
        let directory = self.directory(number)?;
        let hit = match name.as_encoded_bytes() {
            b"." => Some(number),
            b".." => Some(directory.parent),
            _ => directory.get(name),
        };
        let dir = Some(self.node(number).attr(number));
        Ok(LookedUp { found: hit.map(|hit| self.found(hit)), dir })
    }

    pub(super) fn make(
        &mut self,
        cred: &Cred,
        dir: &Handle,
        name: &OsStr,
        new: New,
        set: SetAttr,
    ) -> Result<Made> {
        let dir = self.searched(cred, dir, name)?;
        let before = self.node(dir).before();
        let there = match name.as_encoded_bytes() {
            b"." | b".." => Some(dir),
            _ => self.directory(dir)?.get(name),
        };
        if let Some(there) = there {
            if new != New::File || self.node(there).kind() != Kind::File {
                return Err(Error::Exists);
            }
            self.may_set(cred, there, set)?;
            self.set(cred, there, set);
            let (found, dir) = (self.found(there), self.change(dir, before));
            return Ok(Made { found, dir, created: false, token: None });
        }
        self.node(dir).need(cred, WRITE)?;
        if self.is_full() {
            return Err(Error::NoSpace);
        }
        let body = self.body(cred, dir, new)?;
        let number = self.add(cred, dir, name, body, set)?;
        let (found, dir) = (self.found(number), self.change(dir, before));
        Ok(Made { found, dir, created: true, token: None })
    }

    fn body(&self, cred: &Cred, dir: u64, new: New) -> Result<Body> {
        match new {
            New::File | New::FileExclusive | New::Node(Kind::File, _) => {
                Ok(Body::File { data: Pages::default(), durable: None })
            }
            New::Directory => Ok(Body::Directory(Directory::new(dir))),
            New::Symlink(_) if !self.limits.symlinks => Err(Error::NotSupported),
            New::Symlink(target) if target.is_empty() => Err(Error::InvalidArgument),
            New::Symlink(target) if target.len() > TARGET_LEN_MAX => Err(Error::NameTooLong),
            New::Symlink(target) => Ok(Body::Symlink(target)),
            New::Node(Kind::Directory | Kind::Symlink, _) => Err(Error::InvalidArgument),
            New::Node(Kind::CharDevice | Kind::BlockDevice, _) if cred.uid != 0 => {
                Err(Error::NotPermitted)
            }
            New::Node(kind @ (Kind::CharDevice | Kind::BlockDevice), device) => {
                Ok(Body::Special(kind, device))
            }
            New::Node(kind @ (Kind::Fifo | Kind::Socket), _) => {
                Ok(Body::Special(kind, Device::default()))
            }
        }
    }

    fn add(
        &mut self,
        cred: &Cred,
        dir: u64,
        name: &OsStr,
        body: Body,
        set: SetAttr,
    ) -> Result<u64> {
        let mut node = self.new_node(cred, body);
        let parent = self.node(dir);
        let inherits = parent.mode & SET_GID != 0;
        if inherits {
            node.gid = parent.gid;
        }
        let (number, is_dir) = (self.free_number(), node.is_dir());
        self.nodes.insert(number, node);
        if let Err(error) = self.may_set(cred, number, set) {
            self.remove_node(number);
            return Err(error);
        }
        self.set(cred, number, set);
        if inherits && is_dir {
            self.node_mut(number).mode |= SET_GID;
        }
        self.next = self.next.max(number + 1);
        self.directory_mut(dir).insert(name, number);
        let now = self.tick();
        let parent = self.node_mut(dir);
        parent.touched(now, true);
        parent.nlink += u32::from(is_dir);
        Ok(number)
    }

    pub(super) fn remove(
        &mut self,
        cred: &Cred,
        dir: &Handle,
        name: &OsStr,
        what: Removal,
    ) -> Result<Change> {
        let dir = self.changed(cred, dir, name)?;
        let number = self.directory(dir)?.get(name).ok_or(Error::NotFound)?;
        self.need_unstuck(cred, dir, number)?;
        match (&self.node(number).body, what) {
            (Body::Directory(_), Removal::File) => return Err(Error::IsDirectory),
            (Body::Directory(directory), Removal::Directory) if !directory.names.is_empty() => {
                return Err(Error::NotEmpty);
            }
            (Body::Directory(_), Removal::Directory) | (_, Removal::File) => (),
            (_, Removal::Directory) => return Err(Error::NotDirectory),
        }
        let before = self.node(dir).before();
        self.take_name(dir, name, number);
        Ok(self.change(dir, before))
    }

    /// Takes a name away, and the file if it was its last.
    fn take_name(&mut self, dir: u64, name: &OsStr, number: u64) {
        let now = self.tick();
        self.directory_mut(dir).remove(name);
        let is_dir = self.node(number).is_dir();
        let parent = self.node_mut(dir);
        parent.touched(now, true);
        parent.nlink -= u32::from(is_dir);
        let node = self.node_mut(number);
        node.nlink -= 1;
        node.touched(now, false);
        if is_dir || node.nlink == 0 {
            self.remove_node(number);
        }
    }

    pub(super) fn rename(
        &mut self,
        cred: &Cred,
        from: (&Handle, &OsStr),
        to: (&Handle, &OsStr),
    ) -> Result<(Change, Change)> {
        let from_dir = self.changed(cred, from.0, from.1)?;
        let to_dir = self.changed(cred, to.0, to.1)?;
        let moved = self.directory(from_dir)?.get(from.1).ok_or(Error::NotFound)?;
        let target = self.directory(to_dir)?.get(to.1);
        let (from_before, to_before) = (self.node(from_dir).before(), self.node(to_dir).before());
        if target != Some(moved) {
            self.may_move(cred, from_dir, moved, to_dir, target)?;
            if let Some(target) = target {
                self.take_name(to_dir, to.1, target);
            }
            self.move_name((from_dir, from.1), (to_dir, to.1), moved);
        }
        Ok((self.change(from_dir, from_before), self.change(to_dir, to_before)))
    }

    fn may_move(
        &self,
        cred: &Cred,
        from_dir: u64,
        moved: u64,
        to_dir: u64,
        target: Option<u64>,
    ) -> Result<()> {
        self.need_unstuck(cred, from_dir, moved)?;
        let is_dir = self.node(moved).is_dir();
        if is_dir && self.is_within(to_dir, moved) {
            return Err(Error::InvalidArgument);
        }
        if is_dir && from_dir != to_dir {
            // Its `..` changes, so the caller needs the right to write the directory itself.
            self.node(moved).need(cred, WRITE)?;
        }
        let Some(target) = target else { return Ok(()) };
        self.need_unstuck(cred, to_dir, target)?;
        match &self.node(target).body {
            Body::Directory(_) if !is_dir => Err(Error::IsDirectory),
            Body::Directory(directory) if !directory.names.is_empty() => Err(Error::NotEmpty),
            Body::Directory(_) => Ok(()),
            _ if is_dir => Err(Error::NotDirectory),
            _ => Ok(()),
        }
    }

    fn is_within(&self, mut dir: u64, ancestor: u64) -> bool {
        while dir != ancestor && dir != ROOT {
            dir = self.directory(dir).expect("parents are directories").parent;
        }
        dir == ancestor
    }

    fn move_name(&mut self, from: (u64, &OsStr), to: (u64, &OsStr), moved: u64) {
        let now = self.tick();
        self.directory_mut(from.0).remove(from.1);
        self.directory_mut(to.0).insert(to.1, moved);
        self.node_mut(from.0).touched(now, true);
        if from.0 != to.0 {
            self.node_mut(to.0).touched(now, true);
        }
        let node = self.node_mut(moved);
        node.touched(now, false);
        if let Body::Directory(directory) = &mut node.body {
            directory.parent = to.0;
            self.node_mut(from.0).nlink -= 1;
            self.node_mut(to.0).nlink += 1;
        }
    }

    pub(super) fn link(
        &mut self,
        cred: &Cred,
        file: &Handle,
        dir: &Handle,
        name: &OsStr,
    ) -> Result<(Option<Attr>, Change)> {
        let number = self.resolve(file)?;
        if !self.limits.links {
            return Err(Error::NotSupported);
        }
        let dir = self.changed(cred, dir, name)?;
        if self.directory(dir)?.get(name).is_some() {
            return Err(Error::Exists);
        }
        if self.node(number).is_dir() {
            return Err(Error::NotPermitted);
        }
        let now = self.tick();
        let before = self.node(dir).before();
        self.directory_mut(dir).insert(name, number);
        self.node_mut(dir).touched(now, true);
        let node = self.node_mut(number);
        node.nlink += 1;
        node.touched(now, false);
        Ok((Some(self.node(number).attr(number)), self.change(dir, before)))
    }

    pub(super) fn readdir(
        &self,
        cred: &Cred,
        dir: &Handle,
        cookie: Cookie,
        bytes_max: u32,
    ) -> Result<Listing> {
        let number = self.resolve(dir)?;
        let directory = self.directory(number)?;
        self.node(number).need(cred, READ)?;
        if cookie.position != 0 && cookie.verifier != COOKIE_VERIFIER {
            return Err(Error::BadCookie);
        }
        let mut entries = Vec::new();
        let mut bytes = 0;
        let after = (Bound::Excluded(cookie.position), Bound::Unbounded);
        let mut rest = directory.entries.range(after).peekable();
        while let Some((position, (name, file))) = rest.peek() {
            // Attributes, handle and the numbers of an entry are about 128 bytes on the wire.
            bytes += 128 + name.len();
            if bytes > bytes_max as usize && !entries.is_empty() {
                break;
            }
            entries.push(Listed {
                name: name.clone(),
                fileid: *file,
                position: **position,
                tells_links: true,
                attr: Some(self.node(*file).attr(*file)),
                handle: Some(self.handle_of(*file)),
            });
            rest.next();
        }
        let mut eof = rest.peek().is_none();
        if let (true, Some(to), Some(last)) = (eof, self.listings_lead_to, entries.last_mut()) {
            (eof, last.position) = (false, to);
        }
        let dir = Some(self.node(number).attr(number));
        Ok(Listing { entries, eof, verifier: COOKIE_VERIFIER, dir })
    }
}
