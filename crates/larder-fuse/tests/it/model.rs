//! The model server through the dispatcher, with nothing cached in between: ordinary programs at
//! work.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use larder_fuse::{MountOptions, mount};
use larder_vfs::{Direct, MemRemote};

use crate::RUNTIME;

/// Runs a script in `dir`, which must succeed and print no complaint.
fn sh(dir: &Path, script: &str) -> String {
    let done = Command::new("sh").args(["-ec", script]).current_dir(dir).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && said.is_empty(), "{script}: {said}");
    String::from_utf8(done.stdout).unwrap()
}

#[test]
fn ordinary_programs_work() {
    let dir = tempfile::tempdir().unwrap();
    let remote = Arc::new(MemRemote::new());
    let fs = RUNTIME.block_on(Direct::new(Arc::clone(&remote))).unwrap();
    let options = MountOptions::new("model");
    let mounted = mount(Arc::new(fs), dir.path(), &options, RUNTIME.handle()).unwrap();
    let dir = mounted.mountpoint();

    sh(dir, "mkdir -p a/b; seq 100000 > a/b/numbers; ln a/b/numbers a/link; ln -s b a/s");
    sh(dir, "mkfifo a/pipe; chmod 750 a/b; touch -d 2001-02-03T04:05:06 a/b");
    sh(dir, "cp -a a c; diff -r a/b c/b; test \"$(stat -c %Y c/b)\" = \"$(stat -c %Y a/b)\"");
    assert_eq!(sh(dir, "find c | sort | tr '\\n' ' '"), "c c/b c/b/numbers c/link c/pipe c/s ");
    assert_eq!(sh(dir, "stat -c '%h %a' c/link c/b"), "2 644\n2 750\n");
    sh(dir, "tar cf t.tar a; mkdir x; tar xf t.tar -C x; diff a/b/numbers x/a/link");
    sh(dir, "for n in $(seq 200); do echo $n >> log; done; test $(wc -l < log) = 200");
    sh(
        dir,
        "mv x/a/b y; mv y x/a/z; dd if=/dev/zero of=log bs=1 seek=10 count=3 conv=notrunc 2> /dev/null",
    );
    assert_eq!(dir.join("a/b").metadata().unwrap().permissions().mode() & 0o777, 0o750);
    sh(dir, "rm -r a c x log t.tar; test -z \"$(ls -A)\"");
    mounted.unmount().unwrap();
}
