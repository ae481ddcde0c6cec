//! A Samba server, its share, and a client that has mounted it.

use bytes::Bytes;
use larder_remote::smb::{Credentials, MountOptions, Password, Smb};
use larder_testkit::{Samba, SambaOptions};
use larder_vfs::{Access, Cred, Error, Handle, Judged, New, Remote, SetAttr, Stability};
use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// Less than the half minute for which a server waits for a client that does not return a lease.
pub(super) const GIVE_BACK_MAX: Duration = Duration::from_secs(20);

pub(super) struct Setup {
    pub(super) smb: Arc<Smb>,
    pub(super) root: Handle,
    pub(super) cred: Cred,
    pub(super) server: Samba,
    pub(super) dir: TempDir,
}

pub(super) fn serve(change: impl FnOnce(&mut SambaOptions)) -> (Samba, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let mut options = SambaOptions::default();
    change(&mut options);
    let server = Samba::start(dir.path(), &options).unwrap_or_else(|error| panic!("{error}"));
    (server, dir)
}

pub(super) fn options(server: &Samba) -> MountOptions {
    let login = Credentials::new(Samba::USER, Password::new(Samba::PASSWORD));
    let mut options = MountOptions::new(&server.host().to_string(), Samba::SHARE, login);
    // As the suite makes its files.
    options.file_mode = 0o644;
    // However busy the machine is, leases expire only where a test wants it.
    options.lease_max = Duration::from_secs(600);
    options
}

pub(super) async fn mount(options: &MountOptions) -> Arc<Smb> {
    Arc::new(Smb::mount(options).await.unwrap_or_else(|error| panic!("{error}")))
}

impl Setup {
    pub(super) async fn new(
        samba: impl FnOnce(&mut SambaOptions),
        change: impl FnOnce(&mut MountOptions),
    ) -> Setup {
        let (server, dir) = serve(samba);
        let mut options = options(&server);
        change(&mut options);
        Setup::mounted(server, dir, &options).await
    }

    pub(super) async fn mounted(server: Samba, dir: TempDir, options: &MountOptions) -> Setup {
        let smb = mount(options).await;
        let root = smb.root().await.unwrap().handle;
        Setup { smb, root, cred: Cred::root(), server, dir }
    }

    pub(super) async fn make(&self, name: &str, new: New) -> Result<Handle, Error> {
        let name = OsStr::new(name);
        let made = self.smb.make(&self.cred, &self.root, name, new, SetAttr::default()).await?;
        Ok(made.found.handle)
    }

    /// A file with this content, durable.
    pub(super) async fn file(&self, name: &str, content: &[u8]) -> Handle {
        let file = self.make(name, New::File).await.unwrap();
        if !content.is_empty() {
            self.write(&file, 0, content, Stability::FileSync).await.unwrap();
        }
        file
    }

    pub(super) async fn find(&self, name: &str) -> Option<Handle> {
        let found = self.smb.lookup(&self.cred, &self.root, OsStr::new(name)).await.unwrap().found;
        found.map(|found| found.handle)
    }

    pub(super) async fn write(
        &self,
        file: &Handle,
        offset: u64,
        data: &[u8],
        how: Stability,
    ) -> Result<larder_vfs::RemoteWritten, Error> {
        let data = Bytes::copy_from_slice(data);
        self.smb.write(&self.cred, file, None, offset, data, how).await
    }

    pub(super) async fn read(&self, file: &Handle, offset: u64, len: u32) -> Bytes {
        self.smb.read(&self.cred, file, None, offset, len).await.unwrap().data
    }

    /// The names on the server's disk.
    pub(super) fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.dir.path()).unwrap();
        let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
        let mut names: Vec<_> = entries.map(|entry| name(entry).into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Waits until the server's disk has only these names.
    pub(super) async fn comes_to(&self, names: &[&str]) {
        let describe = || format!("{:?}, not {names:?}\n{}", self.names(), self.server.opens());
        eventually_or(describe, || self.names() == names).await;
    }

    /// At the server's disk there is no such name.
    pub(super) fn is_gone(&self, path: &str) {
        let is_there = self.dir.path().join(path).exists();
        assert!(!is_there, "{path} is still there\n{}", self.server.opens());
    }

    pub(super) async fn access(&self, file: &Handle) -> Judged {
        self.smb.access(&self.cred, file, Access::READ).await.unwrap()
    }

    /// Requests with this command that were answered so far.
    pub(super) fn calls(&self, command: &str) -> u64 {
        let stats = self.smb.stats().procedures;
        stats.iter().find(|one| one.name == command).map_or(0, |one| one.calls)
    }

    /// Requests that were answered so far.
    pub(super) fn requests(&self) -> u64 {
        self.smb.stats().procedures.iter().map(|one| one.calls).sum()
    }

    /// Writes, commits and reads back, also at the server.
    pub(super) async fn data_survives(&self, name: &str, bytes: usize) {
        let file = self.make(name, New::FileExclusive).await.unwrap();
        let data = pattern(bytes);
        let written = self.write(&file, 0, &data, Stability::Unstable).await.unwrap();
        let committed = self.smb.commit(&self.cred, &file, None, 0..0).await.unwrap();
        assert_eq!(written.verifier, committed.verifier);
        assert_eq!(committed.change.after.unwrap().size, bytes as u64);
        assert!(std::fs::read(self.dir.path().join(name)).unwrap() == data);
        for leased in [false, true] {
            if leased {
                assert!(self.access(&file).await.lease.is_some());
            }
            let last = bytes as u64 - 1;
            for (offset, len) in [(0, bytes as u32), (1, 70_000), (last, 10), (last + 9, 1)] {
                let read = self.smb.read(&self.cred, &file, None, offset, len).await.unwrap();
                let start = bytes.min(offset as usize);
                let end = bytes.min(start + len as usize);
                let what = format!("{offset}+{len}, leased {leased}");
                assert!(read.data == data[start..end], "{what}: {} bytes", read.data.len());
                assert_eq!(read.eof, end == bytes, "{what}");
            }
        }
        self.write(&file, 10, b"middle", Stability::FileSync).await.unwrap();
        assert_eq!(self.read(&file, 8, 10).await[2..8], *b"middle");
    }
}

/// Waits for a condition that no notification announces.
pub(super) async fn eventually(what: &str, holds: impl Fn() -> bool) {
    eventually_or(|| what.to_owned(), holds).await;
}

async fn eventually_or(what: impl Fn() -> String, holds: impl Fn() -> bool) {
    let mut ticks = tokio::time::interval(Duration::from_millis(10));
    for _ in 0..6000 {
        if holds() {
            return;
        }
        ticks.tick().await;
    }
    panic!("not after 60 s: {}", what());
}

pub(super) fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + at / 251) as u8).collect()
}
