//! A file system without files: names that begin with `f` exist, others do not until they are
//! created, and a lookup of a name that begins with `stuck` is never answered.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use larder_vfs::*;

pub const FILE_BYTES: u64 = 1 << 30;

/// No name is kept, so each lookup is a message; attributes that come with it are.
const NAME_TTL: Duration = Duration::ZERO;
const ATTR_TTL: Duration = Duration::from_secs(3600);

static ZEROS: [u8; 1 << 20] = [0; 1 << 20];

pub struct Null {
    next: AtomicU64,
    created: Mutex<HashMap<OsString, Ino>>,
}

impl Default for Null {
    fn default() -> Null {
        Null { next: AtomicU64::new(1 << 20), created: Mutex::default() }
    }
}

fn fresh(ino: Ino) -> Fresh {
    let directory = ino == Ino::ROOT;
    let attr = Attr {
        kind: if directory { Kind::Directory } else { Kind::File },
        mode: if directory { 0o755 } else { 0o644 },
        nlink: 1,
        uid: 0,
        gid: 0,
        device: Device::default(),
        size: if directory { 4096 } else { FILE_BYTES },
        used: 4096,
        fsid: 1,
        fileid: ino.0,
        atime: Time::default(),
        mtime: Time::default(),
        ctime: Time::default(),
        change: None,
        data_change: None,
        birth: None,
    };
    Fresh { attr, ttl: ATTR_TTL }
}

fn entry(ino: Ino) -> Entry {
    Entry { ino, fresh: fresh(ino), ttl: NAME_TTL }
}

impl FileSystem for Null {
    fn lookup(&self, _: &Cred, _: Ino, name: &OsStr) -> Answer<Lookup> {
        if let Some(ino) = self.created.lock().unwrap().get(name) {
            return Answer::ok(Lookup::Found(entry(*ino)));
        }
        let name = name.as_encoded_bytes();
        if name.starts_with(b"stuck") {
            // For `death`: the caller waits for ever.
            return Answer::later(std::future::pending());
        }
        Answer::ok(match name.strip_prefix(b"f") {
            Some(rest) => Lookup::Found(entry(Ino(2 + u64::from(*rest.first().unwrap_or(&0))))),
            None => Lookup::Absent { ttl: NAME_TTL },
        })
    }
    fn getattr(&self, _: &Cred, ino: Ino) -> Answer<Fresh> {
        Answer::ok(fresh(ino))
    }
    fn setattr(
        &self,
        _: &Cred,
        ino: Ino,
        _: Option<OpenId>,
        _: SetAttr,
    ) -> Answer<(Fresh, Change)> {
        Answer::ok((fresh(ino), Change::default()))
    }
    fn access(&self, _: &Cred, _: Ino, wanted: Access) -> Answer<Access> {
        Answer::ok(wanted)
    }
    fn readlink(&self, _: &Cred, _: Ino) -> Answer<OsString> {
        Answer::fail(Error::InvalidArgument)
    }
    fn make(&self, _: &Cred, _: Ino, _: &OsStr, _: New, _: SetAttr) -> Answer<Entry> {
        Answer::fail(Error::NotSupported)
    }
    fn remove(&self, _: &Cred, _: Ino, name: &OsStr, _: Removal) -> Answer<()> {
        self.created.lock().unwrap().remove(name);
        Answer::ok(())
    }
    fn rename(&self, _: &Cred, _: (Ino, &OsStr), _: (Ino, &OsStr), _: RenameFlags) -> Answer<()> {
        Answer::ok(())
    }
    fn link(&self, _: &Cred, _: Ino, _: Ino, _: &OsStr) -> Answer<Entry> {
        Answer::fail(Error::NotSupported)
    }
    fn open(&self, _: &Cred, _: Ino, _: OpenFlags) -> Answer<Opened> {
        Answer::ok(self.opened())
    }
    fn create(
        &self,
        _: &Cred,
        _: Ino,
        name: &OsStr,
        _: SetAttr,
        _: OpenFlags,
    ) -> Answer<(Entry, Opened)> {
        let ino = Ino(self.next.fetch_add(1, Ordering::Relaxed));
        self.created.lock().unwrap().insert(name.to_owned(), ino);
        Answer::ok((entry(ino), self.opened()))
    }
    fn read(&self, _: &Cred, _: Ino, _: Option<OpenId>, _: u64, len: u32) -> Answer<Bytes> {
        Answer::ok(Bytes::from_static(&ZEROS[..(len as usize).min(ZEROS.len())]))
    }
    fn write(
        &self,
        _: &Cred,
        _: Ino,
        _: Option<OpenId>,
        _: u64,
        data: &[u8],
        stability: Stability,
    ) -> Answer<Written> {
        let (verifier, change) = Default::default();
        Answer::ok(Written { len: data.len() as u32, stability, verifier, change })
    }
    fn flush(&self, _: &Cred, _: Ino, _: OpenId) -> Answer<()> {
        Answer::ok(())
    }
    fn fsync(&self, _: &Cred, _: Ino) -> Answer<Verifier> {
        Answer::ok(Verifier::default())
    }
    fn release(&self, _: Ino, _: OpenId) -> Answer<()> {
        Answer::ok(())
    }
    fn opendir(&self, _: &Cred, _: Ino) -> Answer<()> {
        Answer::ok(())
    }
    fn readdir(&self, _: &Cred, _: Ino, _: u64, _: u32, _: bool) -> Answer<Vec<DirEntry>> {
        Answer::ok(Vec::new())
    }
    fn statfs(&self, _: &Cred, _: Ino) -> Answer<StatFs> {
        Answer::fail(Error::NotSupported)
    }
    fn handle(&self, _: Ino) -> Answer<Handle> {
        Answer::fail(Error::NotSupported)
    }
    fn resolve(&self, _: &Handle) -> Answer<Ino> {
        Answer::fail(Error::NotSupported)
    }
}

impl Null {
    fn opened(&self) -> Opened {
        let id = OpenId(self.next.fetch_add(1, Ordering::Relaxed));
        Opened { id, path: DataPath::Direct }
    }
}
