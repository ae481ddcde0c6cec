//! A file system for the tests: names in memory, bytes in local files, and every call can be
//! observed.
//!
//! All three data paths lead to the same local file, so bytes written one way are read another. The
//! kernel checks rights (`default_permissions`).

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use larder_vfs::*;

const TTL: Duration = Duration::from_secs(3600);

/// The I/O mode with which [`TestFs`] answers opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Cached,
    Direct,
    Passthrough,
    /// Passthrough with a local file of its own.
    OtherFile,
}

pub(crate) struct TestFs {
    nodes: Mutex<BTreeMap<u64, Node>>,
    next: AtomicU64,
    dir: tempfile::TempDir,
    kernel: OnceLock<Arc<dyn Kernel>>,
    pub(crate) calls: Mutex<Vec<(&'static str, Cred)>>,
    pub(crate) opens: Mutex<Vec<OpenFlags>>,
    /// References that the kernel should have.
    pub(crate) lookups: Mutex<HashMap<u64, i64>>,
    pub(crate) way: Mutex<Way>,
    /// Answer through the runtime.
    pub(crate) later: AtomicBool,
    /// Calls of this name wait while it is there.
    held: tokio::sync::watch::Sender<Option<&'static str>>,
    /// Listings come without attributes.
    pub(crate) bare: AtomicBool,
    /// Listings say that another client alone knows the attributes.
    pub(crate) elsewhere: AtomicBool,
    /// Lookups of this name fail.
    pub(crate) refused: Mutex<Option<OsString>>,
    /// Added to every cookie.
    pub(crate) cookie_base: AtomicU64,
}

struct Node {
    attr: Attr,
    body: Body,
}

enum Body {
    File(Arc<File>),
    Dir { parent: u64, next: u64, entries: BTreeMap<u64, (OsString, u64)> },
    Symlink(OsString),
    Special,
}

impl Body {
    fn find(&self, name: &OsStr) -> Result<Option<(u64, u64)>> {
        let Body::Dir { entries, .. } = self else { return Err(Error::NotDirectory) };
        let hit = entries.iter().find(|(_, (there, _))| there == name);
        Ok(hit.map(|(position, (_, ino))| (*position, *ino)))
    }

    fn insert(&mut self, name: &OsStr, ino: u64) {
        let Body::Dir { next, entries, .. } = self else { panic!("not a directory") };
        *next += 1;
        entries.insert(*next, (name.to_owned(), ino));
    }
}

impl TestFs {
    /// Local files go to a directory below `parent`.
    pub(crate) fn new(parent: &Path) -> Arc<TestFs> {
        let root = Node {
            attr: attr(1, Kind::Directory, 0o755, &Cred::root()),
            body: Body::Dir { parent: 1, next: 0, entries: BTreeMap::new() },
        };
        Arc::new(TestFs {
            nodes: Mutex::new(BTreeMap::from([(1, root)])),
            next: AtomicU64::new(2),
            dir: tempfile::tempdir_in(parent).unwrap(),
            kernel: OnceLock::new(),
            calls: Mutex::default(),
            opens: Mutex::default(),
            lookups: Mutex::default(),
            way: Mutex::new(Way::Cached),
            later: AtomicBool::new(false),
            held: tokio::sync::watch::Sender::new(None),
            bare: AtomicBool::new(false),
            elsewhere: AtomicBool::new(false),
            refused: Mutex::default(),
            cookie_base: AtomicU64::new(0),
        })
    }

    pub(crate) fn kernel(&self) -> &Arc<dyn Kernel> {
        self.kernel.get().expect("attached")
    }

    pub(crate) fn set_way(&self, way: Way) {
        *self.way.lock().unwrap() = way;
    }

    /// Calls of this name wait from now on; with `None`, all go on.
    pub(crate) fn hold(&self, name: Option<&'static str>) {
        self.held.send_replace(name);
    }

    /// How often `name` was called.
    pub(crate) fn count(&self, name: &str) -> usize {
        self.calls.lock().unwrap().iter().filter(|(called, _)| *called == name).count()
    }

    /// The credentials of the last call of `name`.
    pub(crate) fn last_cred(&self, name: &str) -> Cred {
        let calls = self.calls.lock().unwrap();
        calls.iter().rfind(|(called, _)| *called == name).expect(name).1.clone()
    }

    /// Changes a file without the kernel's knowledge.
    pub(crate) fn change(&self, ino: u64, change: impl FnOnce(&mut Attr, Option<&File>)) {
        let mut nodes = self.nodes.lock().unwrap();
        let node = nodes.get_mut(&ino).unwrap();
        let file = match &node.body {
            Body::File(file) => Some(Arc::clone(file)),
            _ => None,
        };
        change(&mut node.attr, file.as_deref());
    }

    /// Gives an existing file another name without the kernel's knowledge.
    pub(crate) fn add_name(&self, ino: u64, name: &str) {
        self.nodes.lock().unwrap().get_mut(&1).unwrap().body.insert(OsStr::new(name), ino);
    }

    /// Adds special files without the kernel's knowledge, which has not listed the directory yet.
    pub(crate) fn fill(&self, dir: Ino, names: impl Iterator<Item = String>) {
        let mut nodes = self.nodes.lock().unwrap();
        for name in names {
            let ino = self.next.fetch_add(1, SeqCst);
            let attr = attr(ino, Kind::Fifo, 0o600, &Cred::root());
            nodes.insert(ino, Node { attr, body: Body::Special });
            nodes.get_mut(&dir.0).unwrap().body.insert(name.as_ref(), ino);
        }
    }

    fn called<T: Send + 'static>(
        &self,
        name: &'static str,
        cred: &Cred,
        result: Result<T>,
    ) -> Answer<T> {
        self.calls.lock().unwrap().push((name, cred.clone()));
        if *self.held.borrow() == Some(name) {
            let mut held = self.held.subscribe();
            return Answer::later(async move {
                held.wait_for(|held| *held != Some(name)).await.map_err(|_| Error::Io)?;
                result
            });
        }
        match self.later.load(SeqCst) {
            true => Answer::later(async move {
                tokio::task::yield_now().await;
                result
            }),
            false => Answer::Now(result),
        }
    }

    fn fresh(&self, node: &Node) -> Fresh {
        let mut attr = node.attr;
        if let Body::File(file) = &node.body {
            let meta = file.metadata().unwrap();
            (attr.size, attr.used) = (meta.len(), meta.blocks() * 512);
        }
        Fresh { attr, ttl: TTL }
    }

    /// An entry that counts as a lookup.
    fn entry(&self, ino: u64, node: &Node) -> Entry {
        *self.lookups.lock().unwrap().entry(ino).or_default() += 1;
        Entry { ino: Ino(ino), fresh: self.fresh(node), ttl: TTL }
    }

    fn add(
        &self,
        parent: Ino,
        name: &OsStr,
        kind: Kind,
        mode: u32,
        cred: &Cred,
        body: Body,
    ) -> Result<Entry> {
        let mut nodes = self.nodes.lock().unwrap();
        let dir = nodes.get_mut(&parent.0).ok_or(Error::Stale)?;
        if dir.body.find(name)?.is_some() {
            return Err(Error::Exists);
        }
        let ino = self.next.fetch_add(1, SeqCst);
        dir.body.insert(name, ino);
        let node = Node { attr: attr(ino, kind, mode, cred), body };
        let entry = self.entry(ino, &node);
        nodes.insert(ino, node);
        Ok(entry)
    }

    fn new_file(&self) -> Body {
        let name = format!("{}", self.next.load(SeqCst));
        let path = self.dir.path().join(name);
        Body::File(Arc::new(
            File::options().read(true).write(true).create_new(true).open(path).unwrap(),
        ))
    }

    fn with<T>(&self, ino: Ino, read: impl FnOnce(&mut Node) -> Result<T>) -> Result<T> {
        read(self.nodes.lock().unwrap().get_mut(&ino.0).ok_or(Error::Stale)?)
    }

    fn with_file<T>(
        &self,
        ino: Ino,
        read: impl FnOnce(&Arc<File>) -> std::io::Result<T>,
    ) -> Result<T> {
        self.with(ino, |node| match &node.body {
            Body::File(file) => read(file).map_err(|_| Error::Io),
            _ => Err(Error::IsDirectory),
        })
    }

    fn opened(&self, ino: Ino, flags: OpenFlags) -> Result<Opened> {
        self.opens.lock().unwrap().push(flags);
        let way = *self.way.lock().unwrap();
        let path = self.with_file(ino, |file| {
            if flags.truncate {
                file.set_len(0)?;
            }
            Ok(match way {
                Way::Cached => DataPath::Cached { keep: true },
                Way::Direct => DataPath::Direct,
                Way::Passthrough => DataPath::Passthrough(Arc::clone(file) as LocalFile),
                Way::OtherFile => DataPath::Passthrough(Arc::new(file.try_clone()?)),
            })
        })?;
        Ok(Opened { id: OpenId(self.next.fetch_add(1, SeqCst)), path })
    }

    fn take(&self, parent: Ino, name: &OsStr, what: Removal) -> Result<()> {
        let mut nodes = self.nodes.lock().unwrap();
        let (position, ino) = nodes[&parent.0].body.find(name)?.ok_or(Error::NotFound)?;
        let node = nodes.get_mut(&ino).unwrap();
        match (&node.body, what) {
            (Body::Dir { .. }, Removal::File) => return Err(Error::IsDirectory),
            (Body::Dir { entries, .. }, Removal::Directory) if !entries.is_empty() => {
                return Err(Error::NotEmpty);
            }
            (Body::Dir { .. }, Removal::Directory) | (_, Removal::File) => (),
            (_, Removal::Directory) => return Err(Error::NotDirectory),
        }
        node.attr.nlink -= 1;
        let Body::Dir { entries, .. } = &mut nodes.get_mut(&parent.0).unwrap().body else {
            unreachable!()
        };
        entries.remove(&position);
        Ok(())
    }

    fn rename_now(&self, from: (Ino, &OsStr), to: (Ino, &OsStr), flags: RenameFlags) -> Result<()> {
        let find = |(dir, name): (Ino, &OsStr)| self.with(dir, |node| node.body.find(name));
        let (from_position, moved) = find(from)?.ok_or(Error::NotFound)?;
        let target = find(to)?;
        if flags.no_replace && target.is_some() {
            return Err(Error::Exists);
        }
        let set = |dir: Ino, position: u64, name: &OsStr, ino: Option<u64>| {
            self.with(dir, |node| {
                let Body::Dir { entries, .. } = &mut node.body else { unreachable!() };
                match ino {
                    Some(ino) => entries.insert(position, (name.to_owned(), ino)),
                    None => entries.remove(&position),
                };
                Ok(())
            })
        };
        match target {
            Some((to_position, other)) if flags.exchange => {
                set(from.0, from_position, from.1, Some(other))?;
                set(to.0, to_position, to.1, Some(moved))
            }
            None if flags.exchange => Err(Error::NotFound),
            Some((to_position, _)) => {
                set(from.0, from_position, from.1, None)?;
                set(to.0, to_position, to.1, Some(moved))
            }
            None => {
                set(from.0, from_position, from.1, None)?;
                self.with(to.0, |node| {
                    node.body.insert(to.1, moved);
                    Ok(())
                })
            }
        }
    }

    fn list(&self, ino: Ino, offset: u64, bytes_max: u32, plus: bool) -> Result<Vec<DirEntry>> {
        let (base, bare) = (self.cookie_base.load(SeqCst), self.bare.load(SeqCst));
        let nodes = self.nodes.lock().unwrap();
        let Body::Dir { entries, .. } = &nodes[&ino.0].body else {
            return Err(Error::NotDirectory);
        };
        let after = offset.saturating_sub(base);
        let listed = entries.range(after + 1..).take(1 + bytes_max as usize / 160);
        Ok(listed
            .map(|(position, (name, ino))| DirEntry {
                name: name.clone(),
                fileid: *ino,
                kind: Some(nodes[ino].attr.kind),
                offset: base + position,
                entry: (plus && !bare).then(|| self.entry(*ino, &nodes[ino])),
                is_elsewhere: self.elsewhere.load(SeqCst),
            })
            .collect())
    }
}

fn attr(ino: u64, kind: Kind, mode: u32, cred: &Cred) -> Attr {
    let time = Time { sec: 1_000_000_000, nsec: 123_456_789 };
    Attr {
        kind,
        mode,
        nlink: 1,
        uid: cred.uid,
        gid: cred.gid,
        device: Device::default(),
        size: 0,
        used: 0,
        fsid: 1,
        fileid: ino,
        atime: time,
        mtime: time,
        ctime: time,
        change: None,
        data_change: None,
        birth: None,
    }
}

impl FileSystem for TestFs {
    fn attach(&self, kernel: Arc<dyn Kernel>) {
        assert!(self.kernel.set(kernel).is_ok(), "attached twice");
    }

    fn lookup(&self, cred: &Cred, parent: Ino, name: &OsStr) -> Answer<Lookup> {
        if self.refused.lock().unwrap().as_deref() == Some(name) {
            return self.called("lookup", cred, Err(Error::InvalidArgument));
        }
        let nodes = self.nodes.lock().unwrap();
        let found = match &nodes[&parent.0].body {
            Body::Dir { parent, .. } if name == ".." => Ok(Some((0, *parent))),
            body => body.find(name),
        };
        let found = found.map(|hit| match hit {
            Some((_, ino)) => Lookup::Found(self.entry(ino, &nodes[&ino])),
            None => Lookup::Absent { ttl: TTL },
        });
        self.called("lookup", cred, found)
    }

    fn forget(&self, ino: Ino, count: u64) {
        *self.lookups.lock().unwrap().entry(ino.0).or_default() -= count as i64;
    }

    fn getattr(&self, cred: &Cred, ino: Ino) -> Answer<Fresh> {
        self.called("getattr", cred, self.with(ino, |node| Ok(self.fresh(node))))
    }

    fn setattr(
        &self,
        cred: &Cred,
        ino: Ino,
        _: Option<OpenId>,
        set: SetAttr,
    ) -> Answer<(Fresh, Change)> {
        let done = self.with(ino, |node| {
            if let (Some(size), Body::File(file)) = (set.size, &node.body) {
                file.set_len(size).map_err(|_| Error::Io)?;
            }
            let attr = &mut node.attr;
            attr.mode = set.mode.unwrap_or(attr.mode);
            attr.uid = set.uid.unwrap_or(attr.uid);
            attr.gid = set.gid.unwrap_or(attr.gid);
            for (field, set) in [(&mut attr.atime, set.atime), (&mut attr.mtime, set.mtime)] {
                match set {
                    Some(SetTime::To(time)) => *field = time,
                    Some(SetTime::ServerNow) => field.sec += 1,
                    None => (),
                }
            }
            Ok((self.fresh(node), Change::default()))
        });
        self.called("setattr", cred, done)
    }

    fn access(&self, cred: &Cred, ino: Ino, wanted: Access) -> Answer<Access> {
        let granted = self.with(ino, |node| match node.attr.mode & 0o400 {
            0 => Ok(wanted & !Access::READ),
            _ => Ok(wanted),
        });
        self.called("access", cred, granted)
    }

    fn readlink(&self, cred: &Cred, ino: Ino) -> Answer<OsString> {
        let target = self.with(ino, |node| match &node.body {
            Body::Symlink(target) => Ok(target.clone()),
            _ => Err(Error::InvalidArgument),
        });
        self.called("readlink", cred, target)
    }

    fn make(
        &self,
        cred: &Cred,
        parent: Ino,
        name: &OsStr,
        new: New,
        set: SetAttr,
    ) -> Answer<Entry> {
        let mode = set.mode.unwrap_or(0o777);
        let (kind, body) = match new {
            New::File | New::FileExclusive => (Kind::File, self.new_file()),
            New::Directory => {
                let body = Body::Dir { parent: parent.0, next: 0, entries: BTreeMap::new() };
                (Kind::Directory, body)
            }
            New::Symlink(target) => (Kind::Symlink, Body::Symlink(target)),
            New::Node(kind, device) => {
                let made = self.add(parent, name, kind, mode, cred, Body::Special);
                let made = made.map(|mut entry| {
                    self.change(entry.ino.0, |attr, _| attr.device = device);
                    entry.fresh.attr.device = device;
                    entry
                });
                return self.called("make", cred, made);
            }
        };
        self.called("make", cred, self.add(parent, name, kind, mode, cred, body))
    }

    fn remove(&self, cred: &Cred, parent: Ino, name: &OsStr, what: Removal) -> Answer<()> {
        self.called("remove", cred, self.take(parent, name, what))
    }

    fn rename(
        &self,
        cred: &Cred,
        from: (Ino, &OsStr),
        to: (Ino, &OsStr),
        flags: RenameFlags,
    ) -> Answer<()> {
        self.called("rename", cred, self.rename_now(from, to, flags))
    }

    fn link(&self, cred: &Cred, ino: Ino, parent: Ino, name: &OsStr) -> Answer<Entry> {
        let mut nodes = self.nodes.lock().unwrap();
        nodes.get_mut(&parent.0).unwrap().body.insert(name, ino.0);
        nodes.get_mut(&ino.0).unwrap().attr.nlink += 1;
        let entry = self.entry(ino.0, &nodes[&ino.0]);
        self.called("link", cred, Ok(entry))
    }

    fn open(&self, cred: &Cred, ino: Ino, flags: OpenFlags) -> Answer<Opened> {
        self.called("open", cred, self.opened(ino, flags))
    }

    fn create(
        &self,
        cred: &Cred,
        parent: Ino,
        name: &OsStr,
        set: SetAttr,
        flags: OpenFlags,
    ) -> Answer<(Entry, Opened)> {
        let mode = set.mode.unwrap_or(0o666);
        let made = self.add(parent, name, Kind::File, mode, cred, self.new_file());
        let both = made.and_then(|entry| Ok((entry, self.opened(entry.ino, flags)?)));
        self.called("create", cred, both)
    }

    fn read(
        &self,
        cred: &Cred,
        ino: Ino,
        _: Option<OpenId>,
        offset: u64,
        len: u32,
    ) -> Answer<Bytes> {
        let data = self.with_file(ino, |file| {
            let mut data = vec![0; len as usize];
            let mut filled = 0;
            while filled < data.len() {
                match file.read_at(&mut data[filled..], offset + filled as u64)? {
                    0 => break,
                    more => filled += more,
                }
            }
            data.truncate(filled);
            Ok(Bytes::from(data))
        });
        self.called("read", cred, data)
    }

    fn write(
        &self,
        cred: &Cred,
        ino: Ino,
        _: Option<OpenId>,
        offset: u64,
        data: &[u8],
        stability: Stability,
    ) -> Answer<Written> {
        let done = self.with_file(ino, |file| file.write_all_at(data, offset));
        let (len, verifier, change) = (data.len() as u32, Verifier(1), Change::default());
        let written = Written { len, stability, verifier, change };
        self.called("write", cred, done.map(|()| written))
    }

    fn flush(&self, cred: &Cred, _: Ino, _: OpenId, _: Option<LockOwner>) -> Answer<()> {
        self.called("flush", cred, Ok(()))
    }

    fn fsync(&self, cred: &Cred, _: Ino, _: Option<OpenId>) -> Answer<Verifier> {
        self.called("fsync", cred, Ok(Verifier(1)))
    }

    fn release(&self, _: Ino, _: OpenId) -> Answer<()> {
        self.called("release", &Cred::root(), Ok(()))
    }

    fn opendir(&self, cred: &Cred, _: Ino) -> Answer<()> {
        self.called("opendir", cred, Ok(()))
    }

    fn readdir(
        &self,
        cred: &Cred,
        ino: Ino,
        offset: u64,
        bytes_max: u32,
        plus: bool,
    ) -> Answer<Vec<DirEntry>> {
        self.called("readdir", cred, self.list(ino, offset, bytes_max, plus))
    }

    fn statfs(&self, cred: &Cred, _: Ino) -> Answer<StatFs> {
        let stat = StatFs {
            bytes: 1 << 40,
            bytes_free: 1 << 39,
            bytes_available: 1 << 38,
            files: 1000,
            files_free: 900,
            files_available: 800,
            name_max: 255,
        };
        self.called("statfs", cred, Ok(stat))
    }

    fn handle(&self, _: Ino) -> Answer<Handle> {
        Answer::fail(Error::NotSupported)
    }

    fn resolve(&self, _: &Handle) -> Answer<Ino> {
        Answer::fail(Error::NotSupported)
    }
}
