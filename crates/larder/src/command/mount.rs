//! `larder mount`: from the command line to a running daemon.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use larder_fuse::Session;

use crate::backend::Backend;
use crate::classes::{IfWrong, raised};
use crate::control::daemon_lives;
use crate::daemon::Announce;
use crate::link::Role;
use crate::log::Service;
use crate::mounted;
use crate::plan::Plan;
use crate::runtime_dir::RuntimeDir;
use crate::{daemon, mountpoint, supervisor, worker};

const AFTER_HELP: &str = "\
Options of -o, named as in nfs(5) where it has them. A later option overrides an earlier one. Defaults
are in parentheses.
  ro, rw                        read only, or read and write (rw)
  actimeo=S                     trust attributes for S seconds: sets the next four
  acregmin=S, acregmax=S        the same for files (5); longer the longer a file is unchanged
  acdirmin=S, acdirmax=S        the same for directories (30)
  noac                          trust nothing, and write synchronously
  lookupcache=all|positive|none which lookups are cached (all)
  cto, nocto                    whether each open asks the server for changes (cto)
  sync                          each write is on the server's disk when it returns
  class=NAME                    the durability class of files that no rule matches (edited); `larder
                                class list` shows the classes
  rules=FILE|build              rules that choose classes, applied before those of
                                /etc/larder/larder.toml and ~/.config/larder/larder.toml; build: the
                                built-in rules for files that a build can make again
  exclusive                     names whose class lets close wait for this machine at most are made here,
                                and at the server within the time of the class. On NFS a promise that
                                no other client changes names in this export (NFS, larder)
  offline                       work on without the server while it is away, or after larder offline MNT:
                                change names and cached files here, and there when it is back (NFS;
                                implies bg)
  wback=S                       send written bytes after at most S seconds, even if the file is still
                                open (30); fsync and close wait for them anyway
  bwlimit=RATE                  send at most so many bytes per second, as 500k or 2M, of what no process
                                waits for: written bytes that are due, names and files that wait here,
                                and what larder sync sends (off); a name counts as 512 bytes. fsync,
                                close and the end of the mount are not limited; see larder bwlimit
  rsize=SIZE, wsize=SIZE        most bytes of a READ or WRITE (what the server prefers, up to 1M)
  nconnect=N                    connections to the server, 1 to 16 (1); each file of a share uses one
  proto=tcp|udp                 transport protocol (tcp)
  port=N, mountport=N           ports of the services; without them the portmapper is asked
  fg, bg                        if the server is away when mounting: fg fails; bg mounts what is cached
                                or, if nothing is, returns and keeps trying in the background (fg)
  retry=N                       minutes to keep trying (10000 with bg); with fg the command waits for
                                that long (0: tries once)
  soft, softerr, hard           what calls do when the server does not answer: fail, fail, wait (soft)
  timeo=T, retrans=N            tenths of a second before a retransmission, and how many there are
  resvport, noresvport          call from a port below 1024 (resvport if root mounts)
  noatime, nosuid, nodev, noexec, allow_other
                                as in mount(8); other users may always use what root mounts
  survive, nosurvive            whether the mount outlives the process that serves it: another takes
                                over, and calls wait meanwhile (survive, with a cache on disk)
  transport=auto|dev|uring      how the kernel's requests arrive: dev by /dev/fuse, or uring by io_uring,
                                which is faster, but the mount then ends with its process (auto: dev
                                if the mount is to survive)
  plain                         be the reference client without a cache; needs --cache none
  fsc, nofsc                    with or without the cache on disk (fsc)
  passthrough, nopassthrough    whether the kernel itself reads and writes cached files, where it can
                                (passthrough)
  fill=off|idle|SIZE            complete partly read files while the link is idle: none, files up to 64M
                                that are not sparse, or files up to SIZE (idle)
  hoard=S                       seconds between two looks at trees that are pinned with a priority (600);
                                0: never; see larder cache pin
  hoard_check=S                 seconds between two comparisons of their bytes here with the checksums
                                (604800, a week); 0: never
  cache_max=SIZE, cache_files=N most bytes and files that the cache holds
  brun=P, bcull=P, bstop=P      percent of the cache's disk that is free when culling ends, when culling
                                begins, and when nothing more is stored (10, 7, 3), as in
                                cachefilesd.conf(5)
  memory=SIZE                   budget for buffers and tables (256M)
  scratch=SIZE                  most that files take in memory whose class asks for no more, as scratch does
                                (an eighth of the machine's memory); 0: they lie on the cache's disk
  rebuild[=now], norebuild      whether a lost file of a volume is made again when it is opened, or with
                                =now as soon as it is known to be lost (norebuild); rebuild needs user_xattr,
                                and lets this machine run, in a sandbox, commands that other clients of the
                                volume recorded; see larder run
  user_xattr, nouser_xattr      whether files have the extended attributes of users (nouser_xattr); on
                                NFS there are only those that report durability classes

Options for SMB shares, as in mount.cifs(8):
  credentials=FILE              lines username=, password=, domain=; only its owner may be able to read it
  username=NAME, domain=NAME    who logs in, if neither the source nor the file says so
  guest                         do not log in
  uid=N, gid=N                  owner of all files (the mounting user)
  file_mode=M, dir_mode=M       modes of files and directories, in octal (0755)
  vers=2.1|3.0|3.0.2|3.1.1      the lowest acceptable protocol version (2.1)
  seal, sign                    require encryption, or signatures, for all messages
  sec=ntlmssp|krb5|none         how to log in: NTLM, Kerberos, not at all (ntlmssp); ntlmsspi and krb5i
                                also require signatures for all messages
  kdc=HOST[:PORT]               the KDC of the Kerberos realm, if krb5.conf(5) does not name it
  lease, nolease                whether to ask the server for leases (lease)
  mfsymlinks, nomfsymlinks      whether symbolic links are made, and shown, as the files that other clients
                                take for links, too (mfsymlinks)
  brl, nobrl                    whether locks of processes also hold between machines (brl)
Without a credentials file, larder takes the password from the variable PASSWD, or from the first line of
the file that PASSWD_FILE names, or asks for it. It is never an option. With sec=krb5 larder does not ask:
without a password it uses the tickets of kinit(1), in the file that KRB5CCNAME names, or in
/tmp/krb5cc_UID. The domain is the realm; HOST must be the server's name in that realm.

The log goes to --log, or else to a file in the runtime directory (see `larder status`). LARDER_LOG=debug
makes it more detailed. With --foreground it goes to standard error.

Automounters need a symbolic link /sbin/mount.larder to larder. Then automount(8) mounts with
-fstype=larder in its maps (give a port as an option there), and systemd with x-systemd.automount in
fstab(5).

Example:
  larder mount nfs://server/export /mnt --cache /var/cache/larder/export -o ro,nconnect=4
  larder mount smb://ann@server/share /mnt -o credentials=/etc/larder/share,uid=1000
  kinit ann@OFFICE.EXAMPLE && larder mount smb://server.office.example/share /mnt -o sec=krb5";

/// Arguments of `larder mount`.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// What to mount: nfs://HOST[:PORT][/EXPORT] or HOST:/EXPORT (with a PORT no portmapper is
    /// asked); smb://[[DOMAIN;]USER@]HOST[:PORT]/SHARE[/FOLDER] or //HOST/SHARE[/FOLDER]
    #[arg(value_name = "SOURCE")]
    source: String,
    /// Where to mount it: a directory on which nothing but an automounter's trigger is mounted
    #[arg(value_name = "MNT")]
    mountpoint: PathBuf,
    /// Directory of the cache, on a local disk, or `none`. It is made if it does not exist, and
    /// serves one mount at a time [default: one for this source, in /var/cache/larder or the
    /// user's cache directory]
    #[arg(long, value_name = "DIR|none")]
    cache: Option<PathBuf>,
    /// Options, separated by commas
    #[arg(short, value_name = "OPT[=VALUE],...")]
    options: Vec<String>,
    /// Stay in the foreground; a signal unmounts
    #[arg(long)]
    foreground: bool,
    /// Where the daemon logs; on SIGHUP it opens a file anew
    #[arg(long, value_name = "FILE|syslog|journal")]
    log: Option<PathBuf>,
    /// This process is the daemon: report on standard output when the mount is usable
    #[arg(long, hide = true)]
    daemon: bool,
    /// This process is a worker of a supervisor
    #[arg(long, hide = true)]
    worker: Option<Role>,
    /// The mountpoint as the supervisor resolved it, before it was mounted on
    #[arg(long, hide = true)]
    at: Option<PathBuf>,
    /// How many workers died before this one
    #[arg(long, hide = true, default_value_t = 0)]
    restarts: u64,
}

/// Mounts. In the foreground it returns when the mount is gone, otherwise when the mount is usable.
///
/// # Errors
/// Of kind [`Usage`] for a wrong command line; otherwise what prevents the mount. Nothing is left
/// mounted then.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    // systemd passes descriptors only to the process that it starts.
    let kept = match args.foreground && args.worker.is_none() {
        true => supervisor::from_fd_store(),
        false => None,
    };
    let plan = plan(args, kept.as_ref().map(Session::mountpoint))?;
    if kept.is_some() && !plan.survives() {
        let shown = plan.mountpoint.display();
        bail!(
            "{shown} has outlived its processes; with these options none goes on: larder umount {shown}"
        );
    }
    if !args.foreground && !args.daemon {
        return daemon::start(plan.back.asked.as_ref());
    }
    let announce = if args.daemon { Announce::Parent } else { Announce::Nobody };
    let log = args.log.as_deref().map(|log| match Service::of(log) {
        Some(_) => Ok(log.to_owned()),
        None => std::path::absolute(log),
    });
    let log = log.transpose()?;
    let log = log.as_deref();
    match args.worker {
        Some(role) => worker::run(&plan, role, args.restarts, announce, log),
        None if plan.survives() => supervisor::run(&plan, kept, announce, log),
        None => {
            mounted::run(&plan, announce, log)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The plan that the arguments describe. `kept` is the mountpoint of a mount that is to continue.
fn plan(args: &Args, kept: Option<&Path>) -> Result<Plan> {
    // A mistake in a file of rules must not end a mount that is to continue.
    let if_wrong = if args.worker.is_some() { IfWrong::Strongest } else { IfWrong::Refuse };
    let back = Backend::find(&args.source, args.cache.as_deref(), &args.options, if_wrong)?;
    if !args.daemon && args.worker.is_none() {
        raised(&back.classes).iter().for_each(|line| eprintln!("larder: {line}"));
    }
    let mountpoint = match (&args.at, kept) {
        (Some(mountpoint), _) => mountpoint.clone(),
        (None, Some(kept)) => same_mountpoint(&args.mountpoint, kept)?,
        (None, None) => usable_mountpoint(&args.mountpoint)?,
    };
    Ok(Plan { back, mountpoint })
}

/// Checks, without touching the mount, that the mount to continue is the one on the given
/// mountpoint.
fn same_mountpoint(typed: &Path, kept: &Path) -> Result<PathBuf> {
    let wanted = mountpoint::resolve(typed).context("no such mountpoint")?;
    let (wanted_shown, kept_shown) = (wanted.display(), kept.display());
    ensure!(wanted == kept, "systemd keeps the mount on {kept_shown}, not one on {wanted_shown}");
    Ok(wanted)
}

/// Resolves a mountpoint and checks that it can be one.
fn usable_mountpoint(typed: &Path) -> Result<PathBuf> {
    let listed = mountpoint::resolve(typed).context("no such mountpoint")?;
    ensure_free(&listed)?;
    let shown = || format!("cannot mount on {}", typed.display());
    let mountpoint = listed.canonicalize().with_context(shown)?;
    ensure_free(&mountpoint)?;
    let held = mountpoint.metadata().with_context(shown)?;
    ensure!(held.is_dir(), "cannot mount on {}: it is no directory", typed.display());
    Ok(mountpoint)
}

fn ensure_free(mountpoint: &Path) -> Result<()> {
    let Some(mount) = mountpoint::mounted_at(mountpoint)? else { return Ok(()) };
    if mount.kind == mountpoint::AUTOFS {
        // A trigger of a direct map: the mount is placed on top of it.
        return Ok(());
    }
    let shown = mountpoint.display();
    let dead = mount.kind == mountpoint::KIND && {
        let runtime = RuntimeDir::open()?;
        runtime.get(mountpoint).is_some() && !daemon_lives(&runtime.socket(mountpoint))
    };
    if dead {
        bail!("{shown} is busy: the daemon of its mount is dead: larder umount {shown}");
    }
    bail!("{shown} is busy: {} ({}) is mounted on it", mount.source, mount.kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mountpoint_must_be_a_free_directory() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("file"), "").unwrap();
        assert!(usable_mountpoint(folder.path()).is_ok());
        assert!(usable_mountpoint(&folder.path().join("file")).is_err());
        assert!(usable_mountpoint(&folder.path().join("missing")).is_err());
        let busy = usable_mountpoint(Path::new("/proc")).unwrap_err().to_string();
        assert!(busy.contains("busy"), "{busy}");
    }
}
