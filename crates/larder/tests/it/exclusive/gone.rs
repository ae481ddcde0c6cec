//! Directories that are gone at the server while names wait in them.

use super::*;

/// What a user makes and removes in `dir`, where the server has `dir/old`.
fn work(mount: &Mount) {
    fs::create_dir_all(mount.path("dir/sub")).unwrap();
    fs::write(mount.path("dir/sub/inner"), "inner").unwrap();
    symlink("inner", mount.path("dir/sub/link")).unwrap();
    fs::write(mount.path("dir/new"), pattern(1, 200_000)).unwrap();
    fs::remove_file(mount.path("dir/old")).unwrap();
    fs::File::open(mount.path("dir")).unwrap().sync_all().unwrap();
}

/// The names below a directory.
fn paths(root: &Path) -> Vec<String> {
    described(root).into_keys().map(|path| path.to_str().unwrap().to_owned()).collect()
}

fn conflicts(mount: &Mount) -> Vec<(String, String)> {
    let status = mount.status();
    let all = status["conflicts"].as_array().cloned().unwrap_or_default().into_iter();
    let text = |one: &serde_json::Value, key| one[key].as_str().unwrap().to_owned();
    all.map(|one| (text(&one, "what"), text(&one, "wanted"))).collect()
}

/// Syncs until all is at the server: that may go on for a moment with a directory that was removed
/// on its machine. Returns what was told on the way.
fn sync_in_the_end(mount: &Mount) -> String {
    let mut told = String::new();
    eventually("all is at the server", || {
        let (code, text) = said(mount, &["sync", mount.path("").to_str().unwrap()]);
        told.push_str(&text);
        code == Some(0)
    });
    told
}

/// `larder sync` has everything at the server, and tells of what it met.
#[test]
fn what_waits_in_a_directory_that_is_gone_is_kept_beside_it() {
    for kind in [Kind::Larder, Kind::Ganesha] {
        for dies in [false, true] {
            let server = Server::start(kind);
            fs::create_dir(server.path("dir")).unwrap();
            fs::write(server.path("dir/old"), "old").unwrap();
            let mut mount = Mount::new(&server, OPTIONS);
            fs::create_dir(mount.path("first")).unwrap();
            work(&mount);
            let here = described(&mount.path("dir"));
            fs::remove_dir_all(server.path("dir")).unwrap();
            if dies {
                // All its processes: another mount begins with the cache alone.
                mount.kill();
                mount.mount();
            }
            sync_in_the_end(&mount);
            let names = paths(&server.path(""));
            let kept = names.iter().find(|name| name.starts_with("dir.conflict-"));
            let kept = kept.unwrap_or_else(|| panic!("{kind:?} {dies}: {names:?}")).clone();
            assert_eq!(described(&server.path(&kept)), here, "{kind:?} {dies}");
            assert_eq!(names.len(), 2 + here.len(), "{kind:?} {dies}: {names:?}");
            assert_eq!(conflicts(&mount), [("gone".into(), "dir".into())], "{kind:?} {dies}");
            assert_eq!(said(&mount, &["status", "--unsaved"]), (Some(0), String::new()));
            let top = mount.path("").to_str().unwrap().trim_end_matches('/').to_owned();
            let listed = said(&mount, &["conflicts", &top]).1;
            let line = format!("/{kept}: what was made in dir here, which is gone at the server");
            assert!(listed.trim().ends_with(&line), "{listed}");
            // It is seen here, too, and nothing is left to do.
            assert_eq!(described(&mount.path(&kept)), here, "{kind:?} {dies}");
            assert!(!mount.path("dir").exists(), "{kind:?} {dies}");
            sync(&mount);
            assert_eq!(paths(&server.path("")), names, "{kind:?} {dies}");
        }
    }
}

/// As after a backup was restored: the directory is another one, and so are its files.
#[test]
fn what_waits_goes_on_in_a_directory_that_was_restored() {
    for kind in [Kind::Larder, Kind::Ganesha] {
        let server = Server::start(kind);
        fs::create_dir(server.path("dir")).unwrap();
        fs::write(server.path("dir/old"), "old").unwrap();
        let mount = Mount::new(&server, OPTIONS);
        fs::create_dir(mount.path("first")).unwrap();
        work(&mount);
        let here = described(&mount.path("dir"));
        // Both are there at once, so the numbers are not given again.
        fs::create_dir(server.path("restored")).unwrap();
        fs::write(server.path("restored/old"), "old").unwrap();
        fs::remove_dir_all(server.path("dir")).unwrap();
        fs::rename(server.path("restored"), server.path("dir")).unwrap();
        let told = sync_in_the_end(&mount);
        let mut there = described(&server.path("dir"));
        // Nobody knows whether it is the file that was removed: it stays, and is told.
        assert!(there.remove(Path::new("old")).is_some(), "{kind:?}");
        assert_eq!(there, here, "{kind:?}");
        assert_eq!(conflicts(&mount), [("removed".into(), "old".into())], "{kind:?}");
        assert!(told.contains("conflicts were found: 1"), "{kind:?}: {told}");
        assert_eq!(described(&server.path("dir")), described(&mount.path("dir")), "{kind:?}");
        assert_eq!(said(&mount, &["status", "--unsaved"]), (Some(0), String::new()));
    }
}
