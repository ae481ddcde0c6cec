//! Shares of a real Samba.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use larder_testkit::{KdcOptions, Samba, SambaOptions};

use crate::harness::{
    Kind, MARKS, Mount, Server, eventually, larder, pattern, said, scratch, shell_as, succeed,
    write_undisturbed,
};
use crate::shell::Shell;

/// Longest time until a mount that is impossible fails.
const ERROR_MAX: Duration = Duration::from_secs(10);
/// A lease ends after 15 s in any case. A change that is seen earlier was notified.
const LEASE_MAX: Duration = Duration::from_secs(12);
/// Names in a directory are trusted for 30 s in any case. A change that is seen earlier was
/// notified.
const WATCH_MAX: Duration = Duration::from_secs(25);

fn samba() -> Server {
    Server::start(Kind::Samba)
}

#[test]
fn file_is_reread_without_a_read_also_after_remount() {
    let server = samba();
    let bytes = pattern(1, 5 << 20);
    fs::write(server.path("big"), &bytes).unwrap();
    let mut mount = Mount::new(&server, &[]);
    assert!(fs::read(mount.path("big")).unwrap() == bytes);
    let cold = mount.calls("READ");
    assert!(cold > 0);
    assert!(fs::read(mount.path("big")).unwrap() == bytes);
    assert_eq!(mount.calls("READ"), cold);
    mount.landed(5 << 20);
    for round in 0..2 {
        // Reading it at the server moves its access time, and with that the time that Samba reports
        // as its creation.
        fs::read(server.path("big")).unwrap();
        mount.remount();
        assert!(fs::read(mount.path("big")).unwrap() == bytes);
        assert_eq!(mount.calls("READ"), 0, "round {round}");
    }
}

#[test]
fn own_writes_are_at_the_server_and_stay_cached() {
    let server = samba();
    let mut mount = Mount::new(&server, &[]);
    let bytes = pattern(2, 3 << 20);
    fs::create_dir(mount.path("dir")).unwrap();
    write_undisturbed(&mount.path("dir/new"), &bytes);
    assert!(fs::read(server.path("dir/new")).unwrap() == bytes, "at the server at close");
    assert!(fs::read(mount.path("dir/new")).unwrap() == bytes);
    fs::rename(mount.path("dir/new"), mount.path("renamed")).unwrap();
    mount.remount();
    assert!(fs::read(mount.path("renamed")).unwrap() == bytes);
    assert_eq!(mount.calls("READ"), 0);
}

/// A listing of a share has no link counts: the file is not treated as one that loses its last
/// name.
#[test]
fn what_is_written_to_an_open_file_reaches_the_name_that_is_left() {
    let server = samba();
    let mount = Mount::new(&server, &[]);
    let names = || -> Vec<_> {
        fs::read_dir(mount.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    };
    fs::write(mount.path("a"), "before").unwrap();
    for name in ["b", "c"] {
        fs::hard_link(mount.path("a"), mount.path(name)).unwrap();
    }
    let file = fs::File::options().write(true).open(mount.path("a")).unwrap();
    file.write_all_at(b"AFTER!", 0).unwrap();
    for name in ["a", "b"] {
        assert!(names().contains(&name.into()));
        fs::remove_file(mount.path(name)).unwrap();
    }
    file.sync_all().unwrap();
    assert_eq!(fs::read(server.path("c")).unwrap(), b"AFTER!");
    file.write_all_at(b"at last", 0).unwrap();
    drop(file);
    assert_eq!(fs::read(server.path("c")).unwrap(), b"at last");
    eventually("the hidden name is gone", || fs::read_dir(server.path("")).unwrap().count() == 1);
}

/// Attributes are trusted for a second without a lease, and as long as the lease lasts with one.
#[test]
fn under_a_lease_stat_and_open_cost_no_request() {
    let server = samba();
    fs::create_dir(server.path("dir")).unwrap();
    fs::write(server.path("dir/file"), "leased").unwrap();
    let mount = Mount::new(&server, &["actimeo=1"]);
    let look = || {
        assert_eq!(fs::metadata(mount.path("dir/file")).unwrap().len(), 6);
        assert_eq!(fs::read(mount.path("dir/file")).unwrap(), b"leased");
    };
    // Nobody waits for the lease on a directory.
    eventually("there are leases", || {
        let before = mount.all_calls();
        look();
        look();
        mount.all_calls() == before
    });
    let (begin, leased) = (Instant::now(), mount.all_calls());
    while begin.elapsed() < Duration::from_millis(3500) {
        look();
        std::thread::park_timeout(Duration::from_millis(100));
    }
    let more = mount.calls_by_procedure();
    assert_eq!(mount.all_calls(), leased, "{more:?}");
}

/// A server notifies clients that only read of a change, and does not wait for their answer
/// (MS-SMB2, 3.3.4.7): the notification is in flight when the other client's call returns. Until it
/// arrives everything is old, and then everything is new.
fn changes(mount: &Mount, old: &[u8], new: &[u8]) {
    let start = Instant::now();
    eventually("the break has come", || match fs::read(mount.path("file")) {
        Ok(seen) => {
            assert!(seen == old || seen == new, "neither old nor new");
            seen == new
        }
        // It came between open and read.
        Err(error) => {
            assert_eq!(error.raw_os_error(), Some(libc::ESTALE), "{error}");
            false
        }
    });
    assert!(start.elapsed() < LEASE_MAX, "that was the lease's end and not word of the change");
}

#[test]
fn what_another_client_changes_is_seen_at_once() {
    let mut server = samba();
    let mount = Mount::new(&server, &[]);
    let local = tempfile::tempdir().unwrap();
    let put = local.path().join("put");
    let mut before = Vec::new();
    for round in 0..5 {
        let bytes = pattern(round, 100_000 + round as usize);
        fs::write(&put, &bytes).unwrap();
        server.as_samba().client(&format!("put {} file", put.display())).unwrap();
        changes(&mount, &before, &bytes);
        assert_eq!(fs::metadata(mount.path("file")).unwrap().len(), bytes.len() as u64);
        before = bytes;
    }
    server.as_samba().client("rename file other; mkdir folder").unwrap();
    // A directory is watched, not leased: the notification of a change comes right after it.
    let start = Instant::now();
    eventually("the new names are seen", || {
        mount.path("folder").is_dir()
            && mount.path("other").is_file()
            && !mount.path("file").exists()
    });
    assert!(start.elapsed() < WATCH_MAX, "names were believed no longer, and no change was told");
}

#[test]
fn two_mounts_see_what_the_other_has_closed() {
    let server = samba();
    let (one, two) = (Mount::new(&server, &[]), Mount::new(&server, &[]));
    let mut before = Vec::new();
    for round in 0..6 {
        let (from, to) = if round % 2 == 0 { (&one, &two) } else { (&two, &one) };
        let bytes = pattern(round, 50_000 * (1 + round as usize % 3));
        fs::write(from.path("file"), &bytes).unwrap();
        changes(to, &before, &bytes);
        assert!(fs::read(from.path("file")).unwrap() == bytes, "round {round}");
        before = bytes;
    }
}

#[test]
fn server_that_signs_encrypts_or_takes_guests_is_served() {
    let variants = [
        (SambaOptions { signing: true, ..SambaOptions::default() }, vec![]),
        (SambaOptions { encryption: true, ..SambaOptions::default() }, vec![]),
        (SambaOptions::default(), vec!["seal", "vers=3.1.1"]),
        (SambaOptions { protocol_max: "SMB2_10", ..SambaOptions::default() }, vec![]),
        (SambaOptions { guest: true, ..SambaOptions::default() }, vec!["guest"]),
    ];
    for (options, mount_options) in variants {
        let what = format!("{options:?} {mount_options:?}");
        let server = Server::samba(&options);
        fs::write(server.path("there"), "read").unwrap();
        let mut mount = Mount::unmounted(&server, &mount_options);
        // Twice in busy runs the bytes were read again; the log is to show why.
        succeed(mount.command().env("LARDER_LOG", "larder_client=debug,larder_remote=debug"));
        mount.mounted();
        assert_eq!(fs::read(mount.path("there")).unwrap(), b"read", "{what}");
        let bytes = pattern(3, 2 << 20);
        write_undisturbed(&mount.path("new"), &bytes);
        assert!(fs::read(server.path("new")).unwrap() == bytes, "{what}");
        mount.remount();
        assert!(fs::read(mount.path("new")).unwrap() == bytes, "{what}");
        assert_eq!(mount.calls("READ"), 0, "{what}");
    }
}

/// A process that another one starts inherits its open files, and closes them when it begins: what
/// was written so far is sent then, in the middle of the writing. The rest is still known to be the
/// only change.
#[test]
fn a_file_that_is_sent_while_it_is_written_stays_cached() {
    // In a process of its own, so that no other one inherits the file and closes it at any time.
    let script = r"
import os, sys
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
whole, start = sys.stdin.buffer.read(), 0
for end in [int(cut) for cut in sys.argv[2:]] + [len(whole)]:
    assert os.write(file, whole[start:end]) == end - start
    os.close(os.dup(file))
    start = end
";
    let server = samba();
    let mut mount = Mount::new(&server, &[]);
    for (number, cuts) in
        [&["1048576"][..], &["700000"], &["1048576", "1500000"]].into_iter().enumerate()
    {
        let bytes = pattern(number as u64, 2 << 20);
        let name = format!("new{number}");
        let mut python = Command::new("python3");
        python.args(["-c", script]).arg(mount.path(&name)).args(cuts).stdin(Stdio::piped());
        let mut python = python.spawn().unwrap();
        python.stdin.take().unwrap().write_all(&bytes).unwrap();
        assert!(python.wait().unwrap().success(), "{cuts:?}");
        mount.remount();
        assert!(fs::read(mount.path(&name)).unwrap() == bytes, "{cuts:?}");
        assert_eq!(mount.calls("READ"), 0, "{cuts:?}");
        assert!(fs::read(server.path(&name)).unwrap() == bytes, "{cuts:?}");
    }
}

#[test]
fn users_of_this_machine_are_kept_apart() {
    let server = samba();
    let mount = Mount::new(&server, &["uid=65531", "gid=65531", "file_mode=0600", "dir_mode=0755"]);
    let (ann, bob) = (65_531, 65_532);
    let path = mount.path("secret");
    assert!(shell_as(ann, ann, &format!("echo mine > {}", path.display())));
    let read = format!("cat {}", path.display());
    assert!(shell_as(ann, ann, &read));
    assert!(!shell_as(bob, bob, &read), "cached or not");
    let meta = fs::metadata(&path).unwrap();
    assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (ann, ann, 0o600));
}

#[test]
fn a_cache_of_one_login_is_not_used_by_another() {
    let server = Server::samba(&SambaOptions { guest: true, ..SambaOptions::default() });
    let mut mount = Mount::new(&server, &[]);
    mount.unmount();
    let mut guest = Mount::unmounted(&server, &["guest"]);
    guest.set_cache(mount.cache());
    let output = guest.command().output().unwrap();
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && line.contains("choose another directory"), "{line}");
}

/// The line of an error, which comes in time and leaves nothing behind.
fn refused(mount: &Mount) -> String {
    refused_by(&mut mount.command(), mount)
}

fn refused_by(command: &mut Command, mount: &Mount) -> String {
    let begin = Instant::now();
    let output = command.output().unwrap();
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(begin.elapsed() < ERROR_MAX, "{line}");
    assert!(!output.status.success(), "{line}");
    assert_eq!(line.trim_end().lines().count(), 1, "{line}");
    assert!(!mount.cache().exists(), "{line}");
    line
}

#[test]
fn what_keeps_a_share_from_being_mounted_is_told_in_a_line() {
    let server = samba();
    let mut mount = Mount::unmounted(&server, &[]);
    mount.set_url(format!("{}-not", server.url()));
    let line = refused(&mount);
    assert!(line.contains("has no share \"share-not\""), "{line}");

    let credentials = tempfile::NamedTempFile::new().unwrap();
    fs::write(credentials.path(), format!("username={}\npassword=wrong\n", Samba::USER)).unwrap();
    fs::set_permissions(credentials.path(), fs::Permissions::from_mode(0o600)).unwrap();
    let option = format!("credentials={}", credentials.path().display());
    let mount = Mount::unmounted(&server, &[&option]);
    let line = refused(&mount);
    assert!(line.contains("refuses the user name or the password"), "{line}");
    assert!(!line.contains("wrong"), "{line}");

    fs::set_permissions(credentials.path(), fs::Permissions::from_mode(0o644)).unwrap();
    let line = refused(&mount);
    assert!(line.contains("chmod 600"), "{line}");

    let mut mount = Mount::unmounted(&server, &[]);
    mount.set_url("smb://127.0.0.1:9/share".to_owned());
    let line = refused(&mount);
    assert!(line.contains("nothing answers"), "{line}");

    let old = SambaOptions { protocol_min: "NT1", protocol_max: "NT1", ..SambaOptions::default() };
    let server = Server::samba(&old);
    let line = refused(&Mount::unmounted(&server, &[]));
    assert!(line.contains("no SMB 2 or 3"), "{line}");
}

#[test]
fn a_password_comes_from_the_environment_and_is_never_an_argument() {
    let server = samba();
    let mut mount = Mount::unmounted(&server, &["credentials=/none"]);
    let (_, line) = said(&mount, &["mount", &server.url(), "/mnt", "-o", "password=x"]);
    assert!(line.contains("credentials=FILE"), "{line}");
    let url = server.url().replace("smb://", &format!("smb://{}@", Samba::USER));
    let mut command = larder();
    command.args(["mount", &url]).arg(mount.path("")).arg("--cache").arg(mount.cache());
    command.envs(mount.larder().get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.env("PASSWD", Samba::PASSWORD);
    succeed(&mut command);
    mount.mounted();
    // The worker is replaced, and knows the password too.
    fs::write(mount.path("file"), "x").unwrap();
    let worker = mount.pids()[1];
    crate::harness::run("kill", &["-KILL", &worker.to_string()]);
    assert_eq!(fs::read(mount.path("file")).unwrap(), b"x");
    for pid in mount.pids() {
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap();
        let arguments = String::from_utf8_lossy(&arguments).into_owned();
        assert!(!arguments.contains(Samba::PASSWORD), "{arguments}");
    }
}

#[test]
fn a_share_is_used_over_several_connections() {
    let mut server = samba();
    let bytes = pattern(6, 300_000);
    let mount = Mount::new(&server, &["nconnect=3", "hard"]);
    // Which connection serves a file depends on its number, and tests that run at the same time use
    // up numbers.
    for number in 0..36 {
        fs::write(mount.path(&format!("file {number}")), &bytes).unwrap();
    }
    assert_eq!(server.as_samba().connections(), 3);
    assert_eq!(mount.json(&["status"])["server"]["connected"], 3);
    let used = |mount: &Mount, column: &str| -> Vec<u64> {
        let stat = mount.json(&["stat"]);
        let connections = stat["connections"].as_array().unwrap();
        connections.iter().map(|one| one[column].as_u64().unwrap()).collect()
    };
    assert!(
        used(&mount, "completed").iter().all(|one| *one > 4),
        "{:?}",
        used(&mount, "completed")
    );
    server.as_samba().kill().unwrap();
    server.as_samba().boot().unwrap();
    for number in 0..36 {
        let name = format!("file {number}");
        fs::write(mount.path(&name), &bytes[number..]).unwrap();
        assert!(fs::read(server.path(&name)).unwrap() == bytes[number..], "{name}");
    }
    assert_eq!(used(&mount, "reconnects"), [1, 1, 1]);
}

/// Reads and writes go on over a server that dies and comes back.
#[test]
fn a_restarted_server_costs_no_byte() {
    let mut server = samba();
    let bytes = pattern(5, 24 << 20);
    fs::write(server.path("big"), &bytes).unwrap();
    let mount = Mount::new(&server, &["hard"]);
    let local = scratch("larder-local-");
    fs::write(local.path().join("head"), &bytes[..5 << 20]).unwrap();
    fs::write(local.path().join("tail"), &bytes[5 << 20..]).unwrap();
    let (at, local) = (mount.path(""), local.path());
    let (at_shown, local_shown) = (at.display(), local.display());
    let mut shell = Shell::new(Command::new("/bin/sh"));
    shell.run(&format!("exec 3<{at_shown}/big 4>{at_shown}/out"));
    shell.run(&format!(
        "dd bs=1M count=1 status=none <&3 >{local_shown}/read; cat {local_shown}/head >&4"
    ));
    server.as_samba().kill().unwrap();
    server.as_samba().boot().unwrap();
    shell.run(&format!("cat <&3 >>{local_shown}/read"));
    assert!(fs::read(local.join("read")).unwrap() == bytes, "read on");
    shell.run(&format!("cat {local_shown}/tail >&4; sync {at_shown}/out"));
    assert!(fs::read(server.path("out")).unwrap() == bytes, "acknowledged by fsync");
    shell.run("printf 'once more' >&4");
    server.as_samba().kill().unwrap();
    server.as_samba().boot().unwrap();
    shell.run("exec 3<&- 4>&-");
    let expected = [&bytes[..], b"once more"].concat();
    assert!(fs::read(server.path("out")).unwrap() == expected, "acknowledged by close");
}

/// A command that mounts with the tickets of kinit.
fn with_tickets(server: &mut Server, mount: &Mount, tickets: &str) -> Command {
    let mut command = mount.larder();
    command.args(["mount", &server.url()]).arg(mount.path("")).arg("--cache").arg(mount.cache());
    command.args(["-o", MARKS, "-o", "sec=krb5i"]).env_remove("PASSWD");
    command.env("KRB5_CONFIG", server.as_samba().krb5_conf()).env("KRB5CCNAME", tickets);
    command
}

#[test]
fn kerberos_vouches_with_a_password_or_with_tickets() {
    let kerberos = Some(KdcOptions::default());
    let mut server = Server::samba(&SambaOptions { kerberos, ..SambaOptions::default() });
    let (domain, kdc) = (format!("domain={}", Samba::REALM), server.as_samba().host());
    let kdc = format!("kdc={kdc}");
    let mut mount = Mount::unmounted(&server, &["sec=krb5", &domain, &kdc]);
    succeed(mount.command().env("LARDER_LOG", "trace"));
    mount.mounted();
    fs::write(mount.path("file"), "written").unwrap();
    assert_eq!(fs::read(server.path("file")).unwrap(), b"written", "at the server at close");
    let log = mount.log();
    assert!(log.contains("mounted an SMB share") && !log.contains(Samba::PASSWORD), "{log}");
    mount.unmount();

    let tickets = server.as_samba().kinit(3600).unwrap();
    let tickets = format!("FILE:{}", tickets.display());
    succeed(&mut with_tickets(&mut server, &mount, &tickets));
    mount.mounted();
    assert_eq!(fs::read(mount.path("file")).unwrap(), b"written");
    assert_eq!(mount.calls("READ"), 0, "the cache is the user's, however he logs in");
    let source = mount.status()["source"].as_str().unwrap().to_owned();
    assert!(source.contains(&format!("{};{}@", Samba::REALM, Samba::USER)), "{source}");
    mount.unmount();

    for (tickets, wanted) in [
        ("FILE:/none", "no Kerberos ticket cache /none; run kinit"),
        ("KEYRING:persistent:0", "KRB5CCNAME"),
    ] {
        let fresh = Mount::unmounted(&server, &[]);
        let line = refused_by(&mut with_tickets(&mut server, &fresh, tickets), &fresh);
        assert!(line.contains(wanted), "{line}");
    }
    server.as_samba().kill_kdc().unwrap();
    let fresh = Mount::unmounted(&server, &["sec=krb5", &domain, &kdc]);
    assert!(refused(&fresh).contains("does not answer by TCP"));
}

/// Tickets live for two seconds, and Samba ends each session with its ticket.
#[test]
fn sessions_that_expire_cost_no_byte() {
    let kerberos = Some(KdcOptions { ticket_life_s: 2, ..KdcOptions::default() });
    let options = SambaOptions { kerberos, log_level: 3, ..SambaOptions::default() };
    let mut server = Server::samba(&options);
    let (domain, kdc) = (format!("domain={}", Samba::REALM), server.as_samba().host());
    let mount = Mount::new(&server, &["sec=krb5", &domain, &format!("kdc={kdc}"), "hard"]);
    let mut rounds = 0;
    eventually("sessions expire", || {
        let bytes = pattern(rounds, 2 << 20);
        let (ours, theirs) = (format!("ours {rounds}"), format!("theirs {rounds}"));
        fs::write(server.path(&theirs), &bytes).unwrap();
        fs::write(mount.path(&ours), &bytes).unwrap();
        assert!(fs::read(server.path(&ours)).unwrap() == bytes, "at the server at close");
        assert!(fs::read(mount.path(&theirs)).unwrap() == bytes, "round {rounds}");
        rounds += 1;
        server.as_samba().expired() >= 2
    });
    for round in 0..rounds {
        let read = fs::read(mount.path(&format!("ours {round}"))).unwrap();
        assert!(read == pattern(round, 2 << 20), "round {round}");
    }
    println!("{rounds} rounds, {} refusals", server.as_samba().expired());
}

#[test]
fn symbolic_links_are_files_that_other_clients_know() {
    let server = samba();
    let (one, two) = (Mount::new(&server, &[]), Mount::new(&server, &["mfsymlinks", "noac"]));
    let plain = Mount::new(&server, &["nomfsymlinks"]);
    let pipe = rustix::fs::mkfifoat(rustix::fs::CWD, one.path("pipe"), rustix::fs::Mode::RWXU);
    assert_eq!(pipe, Err(rustix::io::Errno::PERM), "as mknod(2) says");
    fs::create_dir(one.path("dir")).unwrap();
    fs::write(one.path("dir/file"), "followed").unwrap();
    symlink("dir/file", one.path("link")).unwrap();
    symlink("no such file", one.path("dir/dangling")).unwrap();
    // As `mount.cifs -o mfsymlinks` makes it.
    let content = fs::read(server.path("link")).unwrap();
    assert!(content.starts_with(b"XSym\n0008\na154db1651da435f3838911bb0ad1b29\ndir/file\n  "));
    assert_eq!(content.len(), 1067);
    // And one that such a client has made.
    fs::write(server.path("theirs"), &content).unwrap();
    // A file that has only the size of a link.
    fs::write(one.path("file"), [b'X'; 1067]).unwrap();
    for mount in [&one, &two] {
        for link in ["link", "theirs"] {
            assert_eq!(fs::read_link(mount.path(link)).unwrap(), Path::new("dir/file"));
            assert_eq!(fs::read(mount.path(link)).unwrap(), b"followed");
            let seen = fs::symlink_metadata(mount.path(link)).unwrap();
            assert!(seen.is_symlink() && seen.len() == 8, "{seen:?}");
        }
        let dangling = fs::metadata(mount.path("dir/dangling")).unwrap_err();
        assert_eq!(dangling.raw_os_error(), Some(libc::ENOENT));
        assert!(fs::symlink_metadata(mount.path("file")).unwrap().is_file());
        assert_eq!(fs::read(mount.path("file")).unwrap(), [b'X'; 1067]);
        let not = fs::read_link(mount.path("file")).unwrap_err();
        assert_eq!(not.raw_os_error(), Some(libc::EINVAL));
        let listed = fs::read_dir(mount.path("")).unwrap().map(Result::unwrap);
        let mut listed: Vec<_> = listed
            .map(|entry| (entry.file_name().into_string().unwrap(), entry.file_type().unwrap()))
            .map(|(name, kind)| (name, kind.is_symlink()))
            .collect();
        listed.sort();
        let wanted = [("dir", false), ("file", false), ("link", true), ("theirs", true)];
        assert!(listed.iter().map(|(name, is_link)| (&**name, *is_link)).eq(wanted), "{listed:?}");
    }
    // Whoever does not want links sees files, and makes none.
    assert!(fs::symlink_metadata(plain.path("link")).unwrap().is_file());
    assert_eq!(fs::read(plain.path("link")).unwrap(), content);
    let refused = symlink("a", plain.path("new")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EOPNOTSUPP));
    // They are named, renamed, replaced and removed as such.
    let exists = symlink("other", two.path("link")).unwrap_err();
    assert_eq!(exists.raw_os_error(), Some(libc::EEXIST));
    let long = symlink("x".repeat(1025), one.path("long")).unwrap_err();
    assert_eq!(long.raw_os_error(), Some(libc::ENAMETOOLONG));
    symlink("x".repeat(1024), one.path("long")).unwrap();
    assert_eq!(fs::read_link(two.path("long")).unwrap().as_os_str().len(), 1024);
    symlink("other", one.path("new")).unwrap();
    fs::rename(one.path("new"), one.path("link")).unwrap();
    assert_eq!(fs::read_link(one.path("link")).unwrap(), Path::new("other"));
    assert_eq!(fs::read_link(two.path("link")).unwrap(), Path::new("other"));
    fs::remove_file(one.path("link")).unwrap();
    assert!(!server.path("link").exists() && one.path("dir/file").exists());
    assert!(fs::symlink_metadata(two.path("link")).is_err());
}
