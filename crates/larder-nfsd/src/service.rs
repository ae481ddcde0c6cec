//! NFS and MOUNT as a [`Service`]: identifies the caller, and maps procedures to methods.

use std::sync::Arc;

use larder_rpc::server::{Answer, Call, Service};
use larder_rpc::{Program, Transport};
use larder_vfs::{Cred, FileSystem};
use larder_wire::rpc::{AUTH_TOOWEAK, CallHeader, Credential, Outcome};
use larder_wire::{mount3, nfs3};
use mount3::mountproc3;
use nfs3::nfsproc3;

use crate::Config;
use crate::mount::Mount;
use crate::nfs::{Caller, DATAGRAM_TRANSFER_BYTES_MAX, Nfs, TRANSFER_BYTES_MAX};

/// Both programs, in the order of the counters.
pub(crate) const PROGRAMS: [Program; 2] = [
    Program { number: nfs3::PROGRAM, version: nfs3::VERSION, procedures: nfs3::PROCEDURE_NAMES },
    Program {
        number: mount3::PROGRAM,
        version: mount3::VERSION,
        procedures: &["NULL", "MNT", "DUMP", "UMNT", "UMNTALL", "EXPORT"],
    },
];

/// Both programs in front of one file system.
pub(crate) struct Programs {
    anonymous: Cred,
    squash_root: bool,
    nfs: Nfs,
    mount: Mount,
}

/// Runs a procedure on its arguments. The first form is for results that have a status.
macro_rules! run {
    ($call:ident, |$args:ident| $result:expr) => {
        match $call.arguments() {
            Ok($args) => {
                let result = $result;
                $call.reply(&result, result.is_err())
            }
            Err(garbage) => garbage,
        }
    };
    ($call:ident, always |$args:ident| $result:expr) => {
        match $call.arguments() {
            Ok($args) => $call.reply(&$result, false),
            Err(garbage) => garbage,
        }
    };
}

impl Programs {
    pub(crate) fn new(config: &Config, fs: Arc<dyn FileSystem>) -> Programs {
        Programs {
            anonymous: config.anonymous.clone(),
            squash_root: config.squash_root,
            nfs: Nfs::new(Arc::clone(&fs), config.sole_front_door),
            mount: Mount::new(fs, config),
        }
    }

    async fn call_nfs(&self, mut call: Call<Cred>) -> Answer {
        let transfer_bytes_max = match call.peer.transport {
            Transport::Tcp => TRANSFER_BYTES_MAX,
            Transport::Udp => DATAGRAM_TRANSFER_BYTES_MAX,
        };
        let cred = std::mem::replace(&mut call.caller, Cred::root());
        let (nfs, caller) = (&self.nfs, &Caller { cred, transfer_bytes_max });
        let procedure = nfsproc3::try_from(call.header.procedure).unwrap_or(nfsproc3::NULL);
        match procedure {
            nfsproc3::NULL => call.reply(&(), false),
            nfsproc3::GETATTR => run!(call, |a| nfs.getattr(caller, a).await),
            nfsproc3::SETATTR => run!(call, |a| nfs.setattr(caller, a).await),
            nfsproc3::LOOKUP => run!(call, |a| nfs.lookup(caller, a).await),
            nfsproc3::ACCESS => run!(call, |a| nfs.access(caller, a).await),
            nfsproc3::READLINK => run!(call, |a| nfs.readlink(caller, a).await),
            nfsproc3::READ => run!(call, |a| nfs.read(caller, a).await),
            nfsproc3::WRITE => run!(call, |a| nfs.write(caller, a).await),
            nfsproc3::CREATE => run!(call, |a| nfs.create(caller, a).await),
            nfsproc3::MKDIR => run!(call, |a| nfs.mkdir(caller, a).await),
            nfsproc3::SYMLINK => run!(call, |a| nfs.symlink(caller, a).await),
            nfsproc3::MKNOD => run!(call, |a| nfs.mknod(caller, a).await),
            nfsproc3::REMOVE => run!(call, |a| nfs.remove(caller, a).await),
            nfsproc3::RMDIR => run!(call, |a| nfs.rmdir(caller, a).await),
            nfsproc3::RENAME => run!(call, |a| nfs.rename(caller, a).await),
            nfsproc3::LINK => run!(call, |a| nfs.link(caller, a).await),
            nfsproc3::READDIR => run!(call, |a| nfs.readdir(caller, a).await),
            nfsproc3::READDIRPLUS => run!(call, |a| nfs.readdirplus(caller, a).await),
            nfsproc3::FSSTAT => run!(call, |a| nfs.fsstat(caller, a).await),
            nfsproc3::FSINFO => run!(call, |a| nfs.fsinfo(caller, a).await),
            nfsproc3::PATHCONF => run!(call, |a| nfs.pathconf(caller, a).await),
            nfsproc3::COMMIT => run!(call, |a| nfs.commit(caller, a).await),
        }
    }

    async fn call_mount(&self, mut call: Call<Cred>) -> Answer {
        let (mount, from) = (&self.mount, call.peer.address.ip());
        let procedure = mountproc3::try_from(call.header.procedure).unwrap_or(mountproc3::NULL);
        match procedure {
            mountproc3::NULL => call.reply(&(), false),
            mountproc3::MNT => run!(call, |a| mount.mnt(&call.caller, from, a).await),
            mountproc3::DUMP => call.reply(&mount.dump(), false),
            mountproc3::UMNT => run!(call, always | a | mount.umnt(from, &a)),
            mountproc3::UMNTALL => call.reply(&mount.umnt_all(from), false),
            mountproc3::EXPORT => call.reply(&mount.exports(), false),
        }
    }
}

impl Service for Programs {
    type Caller = Cred;

    fn programs(&self) -> &[Program] {
        &PROGRAMS
    }

    fn admit(&self, header: &CallHeader) -> Result<Cred, Outcome> {
        match &header.credential {
            Credential::Sys(sys) if sys.uid == 0 && self.squash_root => Ok(self.anonymous.clone()),
            Credential::Sys(sys) => Ok(Cred::new(sys.uid, sys.gid, &sys.groups.0)),
            Credential::None => Ok(self.anonymous.clone()),
            // A call of procedure 0 needs no credential (RFC 1813, 3.3.0).
            Credential::Other { .. } if header.procedure == 0 => Ok(self.anonymous.clone()),
            Credential::Other { .. } => Err(Outcome::AuthError(AUTH_TOOWEAK)),
        }
    }

    /// COMMIT is repeatable.
    fn is_repeatable(&self, program: u32, procedure: u32) -> bool {
        use nfsproc3::{
            CREATE, LINK, MKDIR, MKNOD, REMOVE, RENAME, RMDIR, SETATTR, SYMLINK, WRITE,
        };
        program != nfs3::PROGRAM
            || !matches!(
                nfsproc3::try_from(procedure),
                Ok(SETATTR
                    | WRITE
                    | CREATE
                    | MKDIR
                    | SYMLINK
                    | MKNOD
                    | REMOVE
                    | RMDIR
                    | RENAME
                    | LINK)
            )
    }

    /// MOUNT gives out the first handle, so its callers have none. For NFS, the refusal of a wrong
    /// handle is shorter than the call.
    fn answers_anybody(&self, program: u32) -> bool {
        program == mount3::PROGRAM
    }

    fn results_bytes_max(&self, program: u32, procedure: u32, call: &[u8]) -> usize {
        use nfsproc3::{READ, READDIR, READDIRPLUS};
        // Procedures with long answers have the maximum length as their last argument (RFC 1813,
        // 3.3.6, 3.3.16, 3.3.17).
        match (program, nfsproc3::try_from(procedure), call.last_chunk()) {
            (nfs3::PROGRAM, Ok(READ | READDIR | READDIRPLUS), Some(last)) => {
                u32::from_be_bytes(*last).min(TRANSFER_BYTES_MAX) as usize
            }
            _ => 0,
        }
    }

    async fn call(&self, call: Call<Cred>) -> Answer {
        match call.header.program {
            mount3::PROGRAM => self.call_mount(call).await,
            _ => self.call_nfs(call).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_vfs::{Direct, MemRemote};

    #[tokio::test]
    async fn what_a_call_asks_for_is_known_before_it_is_carried_out() {
        let config = Config::new("127.0.0.1:0".parse().unwrap());
        let fs = Direct::new(Arc::new(MemRemote::new())).await.unwrap();
        let programs = Programs::new(&config, Arc::new(fs));
        let bytes = |procedure: nfsproc3, call: &[u8]| {
            programs.results_bytes_max(nfs3::PROGRAM, procedure as u32, call)
        };
        let mut read = vec![0; 128];
        read[124..].copy_from_slice(&(256u32 << 10).to_be_bytes());
        assert_eq!(bytes(nfsproc3::READ, &read), 256 << 10);
        assert_eq!(bytes(nfsproc3::GETATTR, &read), 0);
        read[124..].copy_from_slice(&u32::MAX.to_be_bytes());
        assert_eq!(bytes(nfsproc3::READDIRPLUS, &read), 1 << 20);
        assert_eq!(bytes(nfsproc3::READ, &[1, 2]), 0);
        assert_eq!(programs.results_bytes_max(mount3::PROGRAM, 6, &read), 0);
    }
}
