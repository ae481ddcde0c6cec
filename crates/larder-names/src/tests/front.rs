//! A remote behind which another one answers.

use std::ops::Range;
use std::sync::Mutex;
use std::time::Duration;

use larder_io::Clock;
use larder_vfs::*;

use super::*;

/// A remote behind another one: the names that answer changes here, for code that takes a remote;
/// or a server that takes its time.
pub(super) struct Front {
    inner: Arc<dyn Remote>,
    pace: Option<Arc<Pace>>,
}

/// How long a server takes to make something: that passes on the clock. A call whose deadline comes
/// earlier gets no answer.
pub(super) struct Pace {
    clock: Arc<dyn Clock>,
    takes: Mutex<Duration>,
}

impl Pace {
    pub(super) fn new(clock: &Arc<SimClock>) -> Arc<Pace> {
        Arc::new(Pace { clock: clock.clone(), takes: Mutex::default() })
    }

    pub(super) fn set(&self, takes: Duration) {
        *self.takes.lock().unwrap() = takes;
    }

    async fn pass(&self, cred: &Cred, takes: Duration) -> Result<()> {
        let wait = async {
            if !takes.is_zero() {
                self.clock.sleep(takes).await;
            }
        };
        match cred.deadline {
            Some(deadline) if deadline.at() <= self.clock.instant() => Err(Error::TimedOut),
            Some(deadline) => {
                let waited = self.clock.timeout_at(deadline.at(), wait).await;
                waited.map_err(|_| Error::TimedOut)
            }
            None => {
                wait.await;
                Ok(())
            }
        }
    }
}

impl Front {
    pub(super) fn new(inner: Arc<dyn Remote>) -> Front {
        Front { inner, pace: None }
    }

    pub(super) fn paced(inner: Arc<dyn Remote>, pace: Arc<Pace>) -> Front {
        Front { inner, pace: Some(pace) }
    }

    fn names(&self) -> &dyn Remote {
        self.inner.deferring().map_or(&*self.inner, |here| here.names())
    }

    async fn makes(&self, cred: &Cred) -> Result<()> {
        let Some(pace) = &self.pace else { return Ok(()) };
        let takes = *pace.takes.lock().unwrap();
        pace.pass(cred, takes).await
    }

    async fn writes(&self, cred: &Cred) -> Result<()> {
        match &self.pace {
            Some(pace) => pace.pass(cred, Duration::ZERO).await,
            None => Ok(()),
        }
    }
}

macro_rules! forward {
    ($($name:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*) => {
        $(fn $name<'a>(&'a self, $($arg: $type),*) -> $answer { self.names().$name($($arg),*) })*
    };
}

impl Remote for Front {
    fn root(&self) -> Future<'_, Found> {
        self.names().root()
    }
    fn limits(&self) -> RemoteLimits {
        self.names().limits()
    }
    fn tells_holes(&self) -> bool {
        self.names().tells_holes()
    }
    fn copies(&self) -> bool {
        self.names().copies()
    }
    fn make<'a>(
        &'a self,
        cred: &'a Cred,
        dir: &'a Handle,
        name: &'a OsStr,
        new: New,
        set: SetAttr,
    ) -> Future<'a, Made> {
        Box::pin(async move {
            self.makes(cred).await?;
            self.names().make(cred, dir, name, new, set).await
        })
    }
    fn write<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        open: Option<&'a Token>,
        offset: u64,
        data: bytes::Bytes,
        stability: Stability,
    ) -> Future<'a, RemoteWritten> {
        Box::pin(async move {
            self.writes(cred).await?;
            self.names().write(cred, file, open, offset, data, stability).await
        })
    }
    forward! {
        getattr(cred: &'a Cred, file: &'a Handle) -> Future<'a, Attr>;
        setattr(cred: &'a Cred, file: &'a Handle, set: SetAttr, guard: Option<Time>) -> Future<'a, Changed>;
        access(cred: &'a Cred, file: &'a Handle, wanted: Access) -> Future<'a, Judged>;
        open(cred: &'a Cred, file: &'a Handle, intent: Intent) -> Future<'a, RemoteOpened>;
        lock(cred: &'a Cred, file: &'a Handle, changes: &'a [LockChange]) -> Future<'a, Attr>;
        xattr(cred: &'a Cred, file: &'a Handle, name: &'a OsStr) -> Future<'a, Option<bytes::Bytes>>;
        xattrs(cred: &'a Cred, file: &'a Handle) -> Future<'a, Vec<std::ffi::OsString>>;
        set_xattr(cred: &'a Cred, file: &'a Handle, set: SetXattr) -> Future<'a, Change>;
        lookup(cred: &'a Cred, dir: &'a Handle, name: &'a OsStr) -> Future<'a, LookedUp>;
        readlink(cred: &'a Cred, file: &'a Handle) -> Future<'a, (std::ffi::OsString, Option<Attr>)>;
        read(cred: &'a Cred, file: &'a Handle, open: Option<&'a Token>, offset: u64, len: u32) -> Future<'a, RemoteRead>;
        commit(cred: &'a Cred, file: &'a Handle, open: Option<&'a Token>, range: Range<u64>) -> Future<'a, Committed>;
        change_space(cred: &'a Cred, file: &'a Handle, open: Option<&'a Token>, change: &'a SpaceChange) -> Future<'a, Change>;
        seek(cred: &'a Cred, file: &'a Handle, open: Option<&'a Token>, offset: u64, what: Seek) -> Future<'a, u64>;
        copy_range(cred: &'a Cred, from: larder_vfs::CopyEnd<'a>, to: larder_vfs::CopyEnd<'a>, len: u64) -> Future<'a, larder_vfs::RemoteCopied>;
        remove(cred: &'a Cred, dir: &'a Handle, name: &'a OsStr, what: Removal) -> Future<'a, Change>;
        rename(cred: &'a Cred, from: (&'a Handle, &'a OsStr), to: (&'a Handle, &'a OsStr)) -> Future<'a, (Change, Change)>;
        link(cred: &'a Cred, file: &'a Handle, dir: &'a Handle, name: &'a OsStr) -> Future<'a, (Option<Attr>, Change)>;
        readdir(cred: &'a Cred, dir: &'a Handle, cookie: Cookie, bytes_max: u32) -> Future<'a, Listing>;
        statfs(cred: &'a Cred, file: &'a Handle) -> Future<'a, StatFs>;
    }
}
