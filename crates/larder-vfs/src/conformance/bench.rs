//! What a case works with: calls as the owner in the case's directory, whose failures are messages.

use std::ffi::OsStr;
use std::fmt::Debug;
use std::sync::Arc;

use bytes::Bytes;

use crate::{
    Access, Attr, Change, Cookie, Cred, Error, Found, Handle, Listed, New, Remote, Removal, Result,
    SetAttr, Stability, Verifier,
};

use super::Traits;

/// Result of a case or a step of it.
pub(super) type Outcome<T = ()> = std::result::Result<T, String>;

/// A server, and a directory on it.
#[derive(Clone)]
pub(super) struct Bench {
    pub(super) remote: Arc<dyn Remote>,
    pub(super) dir: Handle,
    pub(super) owner: Cred,
    pub(super) other: Cred,
    /// Another client of the server.
    pub(super) elsewhere: Option<Arc<dyn Remote>>,
}

/// A call that has to work.
pub(super) fn works<T>(what: &str, result: Result<T>) -> Outcome<T> {
    result.map_err(|error| format!("{what}: {error:?}"))
}

/// A call that must fail, with one of these errors.
pub(super) fn refused<T>(what: &str, result: Result<T>, allowed: &[Error]) -> Outcome {
    match result {
        Ok(_) => Err(format!("{what}: it worked; {allowed:?} was to be expected")),
        Err(error) if allowed.contains(&error) => Ok(()),
        Err(error) => Err(format!("{what}: {error:?}; {allowed:?} was to be expected")),
    }
}

/// Two values that have to be equal.
pub(super) fn same<T: PartialEq + Debug>(what: &str, got: T, wanted: T) -> Outcome {
    if got == wanted {
        return Ok(());
    }
    Err(format!("{what}: {got:?}; {wanted:?} was to be expected"))
}

/// A condition that must hold.
pub(super) fn holds(what: &str, it_does: bool) -> Outcome {
    if it_does { Ok(()) } else { Err(format!("{what}: it does not hold")) }
}

/// Attributes that set a mode.
pub(super) fn mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
}

impl Bench {
    pub(super) fn new(remote: Arc<dyn Remote>, dir: Handle, traits: &Traits) -> Bench {
        let (owner, other) = (traits.owner.clone(), traits.other.clone());
        Bench { remote, dir, owner, other, elsewhere: traits.elsewhere.clone() }
    }

    /// Makes something in the case's directory.
    pub(super) async fn make(&self, name: &str, new: New) -> Outcome<Found> {
        self.make_in(&self.dir, name, new).await
    }

    pub(super) async fn make_in(&self, dir: &Handle, name: &str, new: New) -> Outcome<Found> {
        let bits = if new == New::Directory { 0o755 } else { 0o644 };
        // The mode of a symbolic link does not matter.
        let set = if matches!(new, New::Symlink(_)) { SetAttr::default() } else { mode(bits) };
        let made = self.remote.make(&self.owner, dir, name.as_ref(), new, set).await;
        works(&format!("make {name:?}"), made).map(|made| made.found)
    }

    /// A file with this content, durable.
    pub(super) async fn file(&self, name: &str, content: &[u8]) -> Outcome<Handle> {
        let file = self.make(name, New::File).await?.handle;
        self.put(&file, 0, content).await?;
        Ok(file)
    }

    pub(super) async fn directory(&self, name: &str) -> Outcome<Handle> {
        Ok(self.make(name, New::Directory).await?.handle)
    }

    /// Writes durably.
    pub(super) async fn put(&self, file: &Handle, offset: u64, content: &[u8]) -> Outcome<Change> {
        let content = Bytes::copy_from_slice(content);
        let written =
            self.remote.write(&self.owner, file, None, offset, content, Stability::FileSync);
        works("write", written.await).map(|written| written.change)
    }

    /// Writes into memory.
    pub(super) async fn put_unstable(
        &self,
        file: &Handle,
        offset: u64,
        content: &[u8],
    ) -> Outcome<Verifier> {
        let content = Bytes::copy_from_slice(content);
        let written =
            self.remote.write(&self.owner, file, None, offset, content, Stability::Unstable);
        works("unstable write", written.await).map(|written| written.verifier)
    }

    /// Reads, and checks the bytes and whether the end was reported.
    pub(super) async fn reads(
        &self,
        file: &Handle,
        offset: u64,
        len: u32,
        wanted: &[u8],
        eof: bool,
    ) -> Outcome {
        let read = self.remote.read(&self.owner, file, None, offset, len).await;
        let read = works("read", read)?;
        let what = format!("read of {len} at {offset}");
        same(&format!("{what}: length"), read.data.len(), wanted.len())?;
        if read.data != wanted {
            let at = read.data.iter().zip(wanted).position(|(got, wanted)| got != wanted);
            return Err(format!("{what}: first wrong byte at {at:?}"));
        }
        same(&format!("{what}: end of file"), read.eof, eof)
    }

    pub(super) async fn attr(&self, file: &Handle) -> Outcome<Attr> {
        works("getattr", self.remote.getattr(&self.owner, file).await)
    }

    pub(super) async fn set(&self, file: &Handle, set: SetAttr) -> Outcome<Change> {
        works("setattr", self.remote.setattr(&self.owner, file, set, None).await)
    }

    /// The object that `name` stands for in `dir`.
    pub(super) async fn find(
        &self,
        dir: &Handle,
        name: impl AsRef<OsStr>,
    ) -> Outcome<Option<Found>> {
        let found = self.remote.lookup(&self.owner, dir, name.as_ref()).await;
        works("lookup", found).map(|looked_up| looked_up.found)
    }

    /// Checks that `name` stands for the file with this number, or that it does not exist.
    pub(super) async fn stands_for(
        &self,
        dir: &Handle,
        name: &str,
        wanted: Option<u64>,
    ) -> Outcome {
        let found = self.find(dir, name).await?.map(|found| found.attr.fileid);
        same(&format!("what {name:?} stands for"), found, wanted)
    }

    pub(super) async fn remove(&self, dir: &Handle, name: &str, what: Removal) -> Result<Change> {
        self.remote.remove(&self.owner, dir, name.as_ref(), what).await
    }

    pub(super) async fn rename(
        &self,
        from: (&Handle, &str),
        to: (&Handle, &str),
    ) -> Result<(Change, Change)> {
        let (from, to) = ((from.0, from.1.as_ref()), (to.0, to.1.as_ref()));
        self.remote.rename(&self.owner, from, to).await
    }

    pub(super) async fn access(
        &self,
        cred: &Cred,
        file: &Handle,
        wanted: Access,
    ) -> Outcome<Access> {
        works("access", self.remote.access(cred, file, wanted).await).map(|judged| judged.granted)
    }

    /// Every entry of a directory, in replies of about this many bytes.
    pub(super) async fn list(&self, dir: &Handle, bytes_max: u32) -> Outcome<Vec<Listed>> {
        let mut listed: Vec<Listed> = Vec::new();
        let mut cookie = Cookie::default();
        loop {
            let part = self.remote.readdir(&self.owner, dir, cookie, bytes_max).await;
            let part = works("readdir", part)?;
            if part.entries.is_empty() && !part.eof {
                return Err("readdir: nothing, but not the end".into());
            }
            listed.extend(part.entries);
            if part.eof {
                return Ok(listed);
            }
            let position = listed.last().map_or(0, |last| last.position);
            holds("readdir gets on", position != cookie.position)?;
            cookie = Cookie { position, verifier: part.verifier };
        }
    }
}
