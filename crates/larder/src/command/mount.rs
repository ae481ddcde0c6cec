//! `larder mount`: from what was typed to a running daemon.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use larder_fuse::Session;

use crate::back::Back;
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
Options of -o, as in nfs(5) where it has them; a later one overrides an earlier one:
  ro, rw                        nothing may be written; the opposite is the default
  actimeo=S                     seconds for which attributes are trusted: sets the next four
  acregmin=S, acregmax=S        for files (5); longer the longer a file is unchanged
  acdirmin=S, acdirmax=S        for directories (30)
  noac                          trust nothing, and write synchronously
  lookupcache=all|positive|none which lookups are remembered (all)
  cto, nocto                    whether an open asks the server for changes (cto)
  sync                          every write is at the server's disk when it returns
  class=NAME                    how durable files are about which no rule says anything (edited); `larder
                                class list` shows the classes
  rules=FILE|build              rules that choose classes, before those of /etc/larder/larder.toml and
                                ~/.config/larder/larder.toml; build: what a build can make again
  exclusive                     nobody else changes names in this export: those of classes whose close waits
                                for this machine at most are made here, and at the server within the
                                time of the class (NFS)
  wback=S                       seconds after which written bytes go to the server although the file is still
                                open and nobody asks for it (30); fsync and close wait for that anyway
  rsize=SIZE, wsize=SIZE        most bytes of a READ or WRITE (what the server prefers, up to 1M)
  nconnect=N                    connections to the server, 1 to 16 (1); of a share each file uses one of them
  proto=tcp|udp                 how messages travel (tcp)
  port=N, mountport=N           where the services are, if the portmapper is not to be asked
  fg, bg                        a server that is away when mounting: fail; begin with what is cached or, if nothing
                                is, return and try on in the background until it can be mounted (fg)
  retry=N                       minutes for which it is tried so (10000 with bg); with fg the command waits for
                                it (0: tries once)
  soft, softerr, hard           a server that does not answer: fail, fail, wait (soft)
  timeo=T, retrans=N            tenths of a second to a retransmission, and how many there are
  resvport, noresvport          call from a port below 1024 (if root mounts)
  noatime, nosuid, nodev, noexec, allow_other
                                as in mount(8); others may use what root mounts
  survive, nosurvive            whether the mount outlives the process that serves it (survive, with a
                                cache on disk): another one goes on, calls wait meanwhile
  transport=auto|dev|uring      how the kernel's requests travel: by /dev/fuse, or by io_uring: faster, but
                                then the mount ends with its process (auto: dev if it is to survive)
  plain                         the reference client: needs --cache none
  fsc, nofsc                    with (default) or without the cache on disk
  passthrough, nopassthrough    whether the kernel uses cached files by itself, where it can (passthrough)
  fill=off|idle|SIZE            complete files that were read in part while the link is quiet: none, those up
                                to 64M that are not sparse, those up to a size (idle)
  cache_max=SIZE, cache_files=N most that the cache holds
  brun=P, bcull=P, bstop=P      percent of the cache's disk that is free: culling ends, culling
                                begins, nothing more is stored (10, 7, 3), as in cachefilesd.conf(5)
  memory=SIZE                   budget for buffers and tables (256M)
  user_xattr, nouser_xattr      whether files have extended attributes of users (nouser_xattr); NFS
                                servers have none but those that tell of classes

Of SMB shares, as in mount.cifs(8):
  credentials=FILE              lines username=, password=, domain=; only its owner may read it
  username=NAME, domain=NAME    who logs in, if neither the source nor the file says so
  guest                         nobody logs in
  uid=N, gid=N                  owner of everything (who mounts)
  file_mode=M, dir_mode=M       modes of files and directories, in octal (0755)
  vers=2.1|3.0|3.0.2|3.1.1      the lowest version that will do (2.1)
  seal, sign                    all messages must be encrypted, or signed
  sec=ntlmssp|krb5|none         how one logs in: NTLM, Kerberos, not at all (ntlmssp); with an i behind
                                (ntlmsspi, krb5i) all messages must be signed
  kdc=HOST[:PORT]               the KDC of the Kerberos realm, if krb5.conf(5) does not say
  lease, nolease                whether the server is asked to tell of changes (lease)
  brl, nobrl                    whether other machines are kept out by locks of processes (brl)
Without a credentials file the password is that of the variable PASSWD, or the first line of the file
that PASSWD_FILE names, or it is asked for. It is never an option. With sec=krb5 it is not asked for: without
one the tickets are those of kinit(1), in the file that KRB5CCNAME names, or /tmp/krb5cc_UID. The domain is
the realm; HOST must be the name that the server has there.

The log goes to --log, else to the runtime directory (see `larder status`); LARDER_LOG=debug makes it
talk more. With --foreground it goes to standard error.

An automounter mounts by a symbolic link to larder, /sbin/mount.larder: automount(8) with -fstype=larder in
its maps (a port as an option there), systemd with x-systemd.automount in fstab(5).

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
    /// Where: a directory on which nothing is mounted yet, unless by an automounter
    #[arg(value_name = "MNT")]
    mountpoint: PathBuf,
    /// Directory of the cache, on a local disk, or `none`. Made if it is not there; for one mount
    /// at a time [default: one for this source, in /var/cache/larder or the user's cache
    /// directory]
    #[arg(long, value_name = "DIR|none")]
    cache: Option<PathBuf>,
    /// Options, separated by commas
    #[arg(short, value_name = "OPT[=VALUE],...")]
    options: Vec<String>,
    /// Stay in the foreground; a signal unmounts
    #[arg(long)]
    foreground: bool,
    /// Where the daemon logs; a file is opened anew on SIGHUP
    #[arg(long, value_name = "FILE|syslog|journal")]
    log: Option<PathBuf>,
    /// We are the daemon: say on standard output when the mount is usable
    #[arg(long, hide = true)]
    daemon: bool,
    /// We are a worker of a supervisor
    #[arg(long, hide = true)]
    worker: Option<Role>,
    /// The mountpoint as our supervisor has resolved it: by now it is mounted on
    #[arg(long, hide = true)]
    at: Option<PathBuf>,
    /// Workers that died before us
    #[arg(long, hide = true, default_value_t = 0)]
    restarts: u64,
}

/// Mounts. In the foreground it returns when the mount is gone, else when it is usable.
///
/// # Errors
/// Of kind [`Usage`] for what was typed wrongly; else what keeps the mount from being made. Nothing
/// is left mounted then.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    // systemd gives to the process that it starts.
    let kept = match args.foreground && args.worker.is_none() {
        true => supervisor::kept(),
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

/// What the arguments mean. `kept` is the mountpoint of a mount that is to go on.
fn plan(args: &Args, kept: Option<&Path>) -> Result<Plan> {
    // A mount that goes on is not to end because somebody made a mistake in a file of rules.
    let if_wrong = if args.worker.is_some() { IfWrong::Strongest } else { IfWrong::Refuse };
    let back = Back::find(&args.source, args.cache.as_deref(), &args.options, if_wrong)?;
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

/// Checks, without touching the mount, that the one that is to go on is the one that is wanted.
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
        // A trigger of a direct map: what is mounted lies on it.
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
