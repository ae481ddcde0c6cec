//! A mount whose workers died repeatedly: answers everything with EIO. It can be unmounted, and a
//! user can have it try again.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::parent_id;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use anyhow::{Context, Result, anyhow, bail};
use bytes::Bytes;
use larder_fuse::Begin;
use larder_vfs::{
    Access, Answer, Change, Cred, DirEntry, Entry, Error, FileSystem, Fresh, Handle, Ino,
    LockOwner, Lookup, New, OpenFlags, OpenId, Opened, Removal, RenameFlags, SetAttr, Stability,
    StatFs, Verifier, Written,
};
use serde_json::Value;

use crate::control::{Request, Server};
use crate::event::End;
use crate::link::Link;
use crate::report::{State, Status};
use crate::runtime_dir::Record;
use crate::unmount::{How, unmount};

/// Fails every call.
struct Broken;

impl FileSystem for Broken {
    fn lookup(&self, _: &Cred, _: Ino, _: &OsStr) -> Answer<Lookup> {
        Answer::fail(Error::Io)
    }
    fn getattr(&self, _: &Cred, _: Ino) -> Answer<Fresh> {
        Answer::fail(Error::Io)
    }
    fn setattr(&self, _: &Cred, _: Ino, _: Option<OpenId>, _: SetAttr) -> Answer<(Fresh, Change)> {
        Answer::fail(Error::Io)
    }
    fn access(&self, _: &Cred, _: Ino, _: Access) -> Answer<Access> {
        Answer::fail(Error::Io)
    }
    fn readlink(&self, _: &Cred, _: Ino) -> Answer<OsString> {
        Answer::fail(Error::Io)
    }
    fn make(&self, _: &Cred, _: Ino, _: &OsStr, _: New, _: SetAttr) -> Answer<Entry> {
        Answer::fail(Error::Io)
    }
    fn remove(&self, _: &Cred, _: Ino, _: &OsStr, _: Removal) -> Answer<()> {
        Answer::fail(Error::Io)
    }
    fn rename(&self, _: &Cred, _: (Ino, &OsStr), _: (Ino, &OsStr), _: RenameFlags) -> Answer<()> {
        Answer::fail(Error::Io)
    }
    fn link(&self, _: &Cred, _: Ino, _: Ino, _: &OsStr) -> Answer<Entry> {
        Answer::fail(Error::Io)
    }
    fn open(&self, _: &Cred, _: Ino, _: OpenFlags) -> Answer<Opened> {
        Answer::fail(Error::Io)
    }
    fn create(
        &self,
        _: &Cred,
        _: Ino,
        _: &OsStr,
        _: SetAttr,
        _: OpenFlags,
    ) -> Answer<(Entry, Opened)> {
        Answer::fail(Error::Io)
    }
    fn read(&self, _: &Cred, _: Ino, _: Option<OpenId>, _: u64, _: u32) -> Answer<Bytes> {
        Answer::fail(Error::Io)
    }
    fn write(
        &self,
        _: &Cred,
        _: Ino,
        _: Option<OpenId>,
        _: u64,
        _: &[u8],
        _: Stability,
    ) -> Answer<Written> {
        Answer::fail(Error::Io)
    }
    fn flush(&self, _: &Cred, _: Ino, _: OpenId, _: Option<LockOwner>) -> Answer<()> {
        Answer::fail(Error::Io)
    }
    fn fsync(&self, _: &Cred, _: Ino, _: Option<OpenId>) -> Answer<Verifier> {
        Answer::fail(Error::Io)
    }
    /// A later worker finds a file open that no process has open any more: that only costs memory.
    fn release(&self, _: Ino, _: OpenId) -> Answer<()> {
        Answer::ok(())
    }
    fn opendir(&self, _: &Cred, _: Ino) -> Answer<()> {
        Answer::fail(Error::Io)
    }
    fn readdir(&self, _: &Cred, _: Ino, _: u64, _: u32, _: bool) -> Answer<Vec<DirEntry>> {
        Answer::fail(Error::Io)
    }
    fn statfs(&self, _: &Cred, _: Ino) -> Answer<StatFs> {
        Answer::fail(Error::Io)
    }
    fn handle(&self, _: Ino) -> Answer<Handle> {
        Answer::fail(Error::Io)
    }
    fn resolve(&self, _: &Handle) -> Answer<Ino> {
        Answer::fail(Error::Io)
    }
}

/// Fails all calls on the mount until a user unmounts, or asks for another attempt.
///
/// # Errors
/// If the mount is not handed over.
pub(crate) fn serve(
    link: &Arc<Link>,
    record: Record,
    server: Server,
    serving: impl FnOnce(&Record) -> Result<()>,
) -> Result<End> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let session = link.take_session()?;
    let mounted = larder_fuse::serve(session, Arc::new(Broken), runtime.handle(), Begin::Again)?;
    let mounted = Arc::new(mounted);
    let (ends, ended) = channel();
    let (waiting, gone) = (Arc::clone(&mounted), ends.clone());
    std::thread::Builder::new().name("larder-wait".to_owned()).spawn(move || {
        let _ = waiting.wait();
        let _ = gone.send(End::Gone);
    })?;
    serving(&record)?;
    let restarts = link.restarts();
    let seen = Arc::clone(&mounted);
    let is_mounted = move || seen.is_mounted();
    let answers = server
        .serve(move |request, _| answer(&request, &record, restarts, (&is_mounted, &ends)))?;
    let end = ended.recv().context("nobody can end it")?;
    answers.drain(std::time::Duration::from_millis(500));
    match end {
        End::Gone => link.ended(),
        // Dropped, it would take the mount away.
        End::Left => std::mem::forget(mounted),
    }
    Ok(end)
}

fn answer(
    request: &Request,
    record: &Record,
    restarts: u64,
    (is_mounted, ends): (&dyn Fn() -> bool, &Sender<End>),
) -> Result<Value> {
    match request {
        Request::Status => Ok(serde_json::to_value(Status {
            mountpoint: record.mountpoint.display().to_string(),
            source: record.source.clone(),
            state: State::Failed,
            pid: record.pid,
            worker_pid: std::process::id(),
            supervisor_pid: Some(parent_id()),
            restarts,
            log: record.log.as_ref().map(|log| log.display().to_string()),
            ..Status::default()
        })?),
        Request::Unmount { .. } => {
            if is_mounted() {
                unmount(&record.mountpoint, How::Detach)?;
            } else {
                ends.send(End::Gone).map_err(|_| anyhow!("it is ending already"))?;
            }
            Ok(Value::Null)
        }
        Request::Upgrade => {
            ends.send(End::Left).map_err(|_| anyhow!("it is ending already"))?;
            Ok(Value::Null)
        }
        _ => bail!("its workers died again and again; see the log, then: larder upgrade MNT"),
    }
}
