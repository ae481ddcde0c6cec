//! Where a mount logs.

use std::fs;

use crate::harness::{Kind, Mount, Server, eventually, run, succeed};

/// What logrotate(8) does: it moves the file away, and signals the daemon. Both processes log to
/// the new file then, and the mount continues.
#[test]
fn a_hangup_opens_the_log_anew() {
    let server = Server::start(Kind::Larder);
    fs::write(server.path("file"), "here").unwrap();
    for options in [&[][..], &["nosurvive"][..]] {
        let mut mount = Mount::unmounted(&server, options);
        let log = mount.cache().with_file_name("my.log");
        let rotated = log.with_extension("1");
        succeed(mount.command().arg("--log").arg(&log));
        mount.mounted();
        let [pid, worker] = mount.pids();
        fs::rename(&log, &rotated).unwrap();
        run("kill", &["-HUP", &pid.to_string()]);
        let told = || {
            let text = fs::read_to_string(&log).unwrap_or_default();
            text.matches("the log was opened anew").count()
        };
        let processes = if pid == worker { 1 } else { 2 };
        eventually("each has opened it", || told() == processes);
        assert_eq!(fs::read(mount.path("file")).unwrap(), b"here", "{options:?}");
        assert_eq!(mount.pids(), [pid, worker], "{options:?}");
        let before = fs::metadata(&rotated).unwrap().len();
        mount.unmount();
        assert_eq!(fs::metadata(&rotated).unwrap().len(), before, "nothing goes to the old one");
        fs::remove_file(log).unwrap();
    }
}
