//! Rivals: third-party caching network file systems, started beside our own server for a
//! comparison.
//!
//! A rival brings a server and a mount. Its server runs where ours does and on the same disk, so
//! that its bytes cross a link of the same shape: in the network namespace, or behind proxies of
//! its own. What it needs must be installed; a rival that is not, or that does not start, is
//! *absent*, with the reason.
//!
//! Equal for all, as far as a rival can be configured: attributes of files are trusted for 5
//! seconds, lists of names for 30, a file that was closed is on the server, and a budget of memory
//! is [`MEMORY_MIB`]. All else is a rival's default, as its users run it; [`METHOD`] and the
//! options of a target say the rest.
//!
//! Everything is unmounted, ended and removed when an [`Entrant`] is dropped, even after a partial
//! start. Every wait for a mount or unmount command has a limit. *Left out on purpose:* installing
//! anything.

mod fuse;
mod gluster;
mod juicefs;
mod rclone;
mod server;
mod sshd;
mod sshfs;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;

use crate::process;
use crate::stand::Stand;
use crate::target::{Target, mount_of};
use fuse::Mount;
use server::Server;

/// Memory for buffers, of those rivals that have a budget: that of our own mounts.
const MEMORY_MIB: u32 = 256;
/// For how long attributes of files are trusted, in seconds: `acregmin` of ours.
const FILES_TRUSTED_S: u32 = 5;
/// For how long lists of names are trusted, in seconds: `acdirmin` of ours.
const NAMES_TRUSTED_S: u32 = 30;

/// What a report has to say about a comparison.
pub const METHOD: [&str; 5] = [
    "Rivals run with their defaults but for the options shown: attributes of files are trusted for 5 s and lists of names for 30 s, as ours.",
    "sshfs, rclone and juicefs reach one sshd each (internal-sftp, an ed25519 key, default ciphers); juicefs keeps its names in a Redis beside it, appendfsync everysec.",
    "rclone writes back at close (--vfs-write-back 0s), as the others do: its default would upload seconds later, during the test of somebody else. Its files are executable (--file-perms 0755): it keeps no modes, and by default no program on it can be run.",
    "juicefs and gluster keep files in a form of their own: they are furnished through the mount, which is then mounted afresh with an empty cache. Those that are furnished on the server are mounted afresh, too.",
    "Behind a proxy each server of a rival has one of its own with the full shape: juicefs, which has two servers, then has two links.",
];

/// A third-party file system.
pub struct Rival {
    /// Name in the report.
    pub name: &'static str,
    /// Programs that must be in the path.
    programs: &'static [&'static str],
    /// Commands that install them on Debian.
    install: &'static str,
    start: fn(&Stand, &str) -> Result<Entrant>,
}

/// All rivals.
pub const RIVALS: [Rival; 4] = [sshfs::RIVAL, rclone::RIVAL, juicefs::RIVAL, gluster::RIVAL];

/// A rival that is mounted. Dropped, it is unmounted and its servers end.
pub struct Entrant {
    /// Its directory, to be measured.
    pub target: Target,
    // Before the servers: to unmount may need them.
    _mount: Unmount,
    _servers: Vec<Server>,
}

/// Ends a mount when dropped. The mount itself is shared with the target, which may live longer.
struct Unmount(Arc<Mount>);

impl Drop for Unmount {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Rival {
    /// Starts its servers on a stand and mounts it. Blocks until it answers, some seconds at most.
    ///
    /// # Errors
    /// Why it is absent, in a line that begins with its name. Nothing of it is left then.
    pub fn start(&self, stand: &Stand) -> Result<Entrant, String> {
        if let Some(missing) = self.missing(|program| process::find(program).is_some()) {
            return Err(missing);
        }
        (self.start)(stand, self.name)
            .map_err(|error| format!("{}: {}", self.name, format!("{error:#}").replace('\n', " ")))
    }

    /// A line that says what is not installed and how to install it.
    fn missing(&self, is_there: impl Fn(&str) -> bool) -> Option<String> {
        let missing: Vec<_> =
            self.programs.iter().copied().filter(|program| !is_there(program)).collect();
        (!missing.is_empty()).then(|| {
            format!("{}: not installed ({}; no {})", self.name, self.install, missing.join(", "))
        })
    }
}

/// The parts of an entrant, when everything of it runs.
struct Parts {
    mount: Arc<Mount>,
    servers: Vec<Server>,
    /// The same directory on the server, if files are plain files there.
    back: Option<PathBuf>,
    /// Where its servers keep things.
    stores: Vec<PathBuf>,
    version: String,
}

impl Entrant {
    fn new(name: &str, parts: Parts) -> Entrant {
        let Parts { mount, servers, back, stores, version } = parts;
        let mut target = Target::new(name, &mount.mountpoint());
        target.back = back;
        target.disks = stores.into_iter().chain(mount.cache()).collect();
        let mounted = mount_of(&target.dir).unwrap_or_default();
        target.options = format!("{mounted}: {}", mount.command_line());
        target.version = version;
        let again = mount.clone();
        target.restart = Some(Arc::new(move |_, empty| again.restart(empty)));
        Entrant { target, _mount: Unmount(mount), _servers: servers }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_told_with_how_to_install_it() {
        for rival in RIVALS {
            assert_eq!(rival.missing(|_| true), None);
            let line = rival.missing(|_| false).unwrap();
            assert!(line.starts_with(&format!("{}: not installed (", rival.name)), "{line}");
            assert!(line.contains(rival.install) && line.contains(rival.programs[0]), "{line}");
        }
        let line = juicefs::RIVAL.missing(|program| program != "redis-server").unwrap();
        assert!(line.ends_with("; no redis-server)"), "{line}");
    }
}
