//! Everyday programs on a share of a real Samba: as root, and as a user that the mount names.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;
use std::process::Command;

use crate::harness::{Kind, Mount, Server, run, scratch, succeed};
use crate::shell::Shell;

/// The users who work on the share.
const USERS: [u32; 2] = [0, 65_531];

/// Runs a check on a fresh mount for each user, with an own directory on a local disk: the first
/// path is on the share, the second one local.
fn as_each_user(check: impl Fn(&Worker, &Path, &Path)) {
    for uid in USERS {
        let server = Server::start(Kind::Samba);
        let (owner, group) = (format!("uid={uid}"), format!("gid={uid}"));
        let mount = Mount::new(&server, &[&owner, &group]);
        let local = scratch("larder-local-");
        chown(local.path(), Some(uid), Some(uid)).unwrap();
        check(&Worker { uid }, &mount.path(""), local.path());
    }
}

/// A user of this machine.
struct Worker {
    uid: u32,
}

impl Worker {
    /// Runs a script that must succeed, with `local` as home.
    fn run(&self, local: &Path, script: &str) -> String {
        self.run_by(Command::new("setpriv"), local, script)
    }

    /// The same, with the Rust toolchain of the user who runs the tests, at `local/rust`.
    fn run_with_rust(&self, local: &Path, script: &str) -> String {
        let sysroot = run("rustc", &["--print", "sysroot"]).stdout;
        let sysroot = String::from_utf8(sysroot).unwrap();
        let rust = local.join("rust");
        fs::create_dir(&rust).unwrap();
        // A home may be closed to other users: they get the toolchain at another path, in a
        // namespace of their own.
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-ec"]);
        command.arg("mount --bind \"$0\" \"$1\"; shift; exec setpriv \"$@\"");
        command.arg(sysroot.trim_end()).arg(&rust);
        self.run_by(command, local, script)
    }

    fn run_by(&self, mut command: Command, local: &Path, script: &str) -> String {
        let id = self.uid.to_string();
        command.args(["--reuid", &id, "--regid", &id, "--clear-groups", "sh", "-ec", script]);
        command.env_clear().env("HOME", local).env("PATH", "/usr/bin:/bin");
        command.env("GIT_AUTHOR_NAME", "t").env("GIT_AUTHOR_EMAIL", "t@t");
        command.env("GIT_COMMITTER_NAME", "t").env("GIT_COMMITTER_EMAIL", "t@t");
        String::from_utf8(succeed(&mut command).stdout).unwrap()
    }
}

#[test]
fn git_works_on_a_share() {
    as_each_user(|worker, share, local| {
        let script = format!(
            "cd {local}; git init -q from; cd from
             for i in $(seq 40); do echo $i >f$i; done; git add .; git commit -qm one
             cd {share}; git clone -q --no-local {local}/from clone; cd clone
             test -z \"$(git status --porcelain)\"
             echo more >>f1; git commit -qam two
             git checkout -q -b branch; echo else >f2; git commit -qam three; git checkout -q -
             git merge -q branch; git gc -q --prune=now; git fsck --strict --full
             git clone -q {share}/clone {local}/back; cd {local}/back; git fsck --strict
             cat f1 f2",
            local = local.display(),
            share = share.display(),
        );
        assert_eq!(worker.run(local, &script), "1\nmore\nelse\n", "uid {}", worker.uid);
    });
}

#[test]
fn read_only_files_are_unpacked_and_copied_to_a_share() {
    as_each_user(|worker, share, local| {
        let script = format!(
            "cd {local}; mkdir -p from/d; for i in $(seq 20); do echo $i >from/d/f$i; done
             head -c 3000000 /dev/urandom >from/big; cp from/big from/other
             chmod 444 from/d/* from/big; tar cf a.tar from
             cd {share}; tar xf {local}/a.tar; diff -r from {local}/from
             test ! -w from/big || test {uid} = 0; test $(stat -c %A from/big) = -r-xr-xr-x
             cp -a {local}/from copy; diff -r copy {local}/from
             cp -a copy again; diff -r again {local}/from
             rm -rf from copy; mv again from; diff -r from {local}/from
             tar cf {local}/b.tar from; cd {local}; mkdir b; tar xf b.tar -C b; diff -r b/from from
             rm -rf {share}/from; ls -A {share}",
            local = local.display(),
            share = share.display(),
            uid = worker.uid,
        );
        assert_eq!(worker.run(local, &script), "", "uid {}", worker.uid);
    });
}

#[test]
fn sqlite_keeps_its_database_on_a_share() {
    as_each_user(|worker, share, local| {
        for (journal, said) in [("delete", "delete"), ("truncate", "truncate"), ("wal", "wal")] {
            let sql = format!(
                "pragma journal_mode={journal}; create table t(a integer primary key, b text); begin; \
                 with recursive n(i) as (select 1 union all select i+1 from n where i<2000) \
                 insert into t select i, hex(randomblob(40)) from n; commit; \
                 delete from t where a%3=0; update t set b='x' where a%5=0; vacuum;"
            );
            let script = format!(
                "cd {share}; sqlite3 {journal}.db \"{sql}\"
                 sqlite3 {journal}.db 'pragma integrity_check; select count(*) from t;'
                 cp {journal}.db {local}; sqlite3 {local}/{journal}.db 'pragma integrity_check;'",
                share = share.display(),
                local = local.display(),
            );
            let expected = format!("{said}\nok\n1334\nok\n");
            assert_eq!(worker.run(local, &script), expected, "uid {} {journal}", worker.uid);
        }
    });
}

#[test]
fn cargo_builds_on_a_share() {
    as_each_user(|worker, share, local| {
        let script = format!(
            "export PATH={local}/rust/bin:$PATH CARGO_HOME={local}/cargo
             cd {share}; cargo init -q --vcs none --name p p; cd p
             echo 'pub fn f() -> u32 {{ 41 }}' >src/lib.rs
             echo 'fn main() {{ println!(\"{{}}\", p::f() + 1); }}' >src/main.rs
             cargo build -q --offline; ./target/debug/p
             echo 'pub fn f() -> u32 {{ 42 }}' >src/lib.rs
             cargo build -q --offline; ./target/debug/p; cargo clean -q; ls",
            local = local.display(),
            share = share.display(),
        );
        let said = worker.run_with_rust(local, &script);
        assert_eq!(said, "42\n43\nCargo.lock\nCargo.toml\nsrc\n", "uid {}", worker.uid);
    });
}

/// The server's open of it is gone then.
#[test]
fn read_only_files_are_sent_by_another_worker_and_after_the_server_was_away() {
    let mut server = Server::start(Kind::Samba);
    let mount = Mount::new(&server, &["hard"]);
    let mut shell = Shell::new(Command::new("/bin/sh"));
    shell.run(&format!("cd {}; umask 0222; exec 3>one 4>two", mount.path("").display()));
    shell.run("echo early >&3; echo early >&4");
    let worker = mount.pids()[1];
    run("kill", &["-KILL", &worker.to_string()]);
    shell.run("echo late >&3; exec 3>&-");
    server.kill();
    server.restart();
    shell.run("echo late >&4; exec 4>&-; cd /");
    for name in ["one", "two"] {
        assert_eq!(fs::read_to_string(server.path(name)).unwrap(), "early\nlate\n", "{name}");
        assert_eq!(fs::metadata(mount.path(name)).unwrap().mode() & 0o222, 0, "{name}");
    }
    shell.end();
}
