//! Names that another client has made as well, where there are many.

use super::*;

/// A volume does not let it come to that.
#[test]
fn a_name_of_another_client_is_kept_beside_ours_and_listed() {
    let server = Server::start(Kind::Larder);
    let there = Elsewhere::of(Kind::Larder, &server);
    let mut mount = Mount::new(&server, OPTIONS);
    fs::create_dir(mount.path("first")).unwrap();
    fs::write(mount.path("name"), "ours").unwrap();
    fs::write(there.path("name"), "theirs").unwrap();
    sync(&mount);
    assert_eq!(said(&mount, &["status", "--unsaved"]), (Some(0), String::new()));
    let top = mount.path("").to_str().unwrap().trim_end_matches('/').to_owned();
    let (code, told) = said(&mount, &["conflicts", &top]);
    assert!(code == Some(0) && told.lines().count() == 1, "{told}");
    let (before, _) = told.split_once(": kept beside name, which somebody else has made").unwrap();
    let path = before.strip_prefix("1 (").and_then(|rest| rest.split_once(") ")).unwrap().1;
    assert!(path.contains("/name.conflict-"), "{path}");
    // Where people look first, too.
    let status = said(&mount, &["status", &top]).1;
    assert!(status.contains(&format!("  conflict {}", told.trim())), "{status}");
    let gauges = said(&mount, &["status", "--prometheus", &top]).1;
    assert!(
        gauges.lines().any(|line| line.starts_with("larder_conflicts{") && line.ends_with(" 1"))
    );
    let at = path.rsplit_once('/').unwrap().1;
    let listed = |mount: &Mount| mount.status()["conflicts"].clone();
    let found_sec = listed(&mount)[0]["found_sec"].as_u64().unwrap();
    let age = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    assert!(age.as_secs().abs_diff(found_sec) < 3600, "{found_sec}");
    let one = serde_json::json!([{
        "number": 1, "found_sec": found_sec, "what": "made", "path": at, "wanted": "name"
    }]);
    assert_eq!(listed(&mount), one);
    assert_eq!(fs::read(path).unwrap(), b"ours");
    assert_eq!(fs::read(mount.path("name")).unwrap(), b"theirs");
    fs::rename(path, mount.path("mine")).unwrap();
    sync(&mount);
    // Until a user clears it: over the death of all processes, and a mount that is not there.
    mount.kill();
    mount.mount();
    assert_eq!(listed(&mount), one);
    mount.unmount();
    let cache = mount.cache().to_str().unwrap().to_owned();
    let told: serde_json::Value =
        serde_json::from_str(&said(&mount, &["conflicts", &cache, "--json"]).1).unwrap();
    assert_eq!(told, one);
    assert_eq!(said(&mount, &["conflicts", &cache, "--clear", "7"]).0, Some(1));
    assert_eq!(
        said(&mount, &["conflicts", &cache, "--clear", "1"]),
        (Some(0), "1 cleared\n".into())
    );
    mount.mount();
    assert!(listed(&mount).is_null());
    // Numbers are not given again. The first object of a user is made at the server at once.
    fs::create_dir(mount.path("second")).unwrap();
    fs::write(mount.path("other"), "ours").unwrap();
    fs::write(there.path("other"), "theirs").unwrap();
    sync(&mount);
    assert_eq!(listed(&mount)[0]["number"], 2);
    assert_eq!(
        said(&mount, &["conflicts", &top, "--clear", "all"]),
        (Some(0), "1 cleared\n".into())
    );
    assert!(listed(&mount).is_null());
}

/// However many conflicts there are, and however long their paths: all are listed, and the status
/// tells how many.
#[test]
fn all_conflicts_are_listed_however_many_there_are() {
    const COUNT: usize = 600;
    let server = Server::start(Kind::Larder);
    let there = Elsewhere::of(Kind::Larder, &server);
    let mount = Mount::new(&server, OPTIONS);
    let mut deep = PathBuf::new();
    for count in 0..12 {
        deep.push(format!("{count:x}").repeat(200));
    }
    fs::create_dir_all(mount.path(deep.to_str().unwrap())).unwrap();
    sync(&mount);
    for count in 0..COUNT {
        let name = deep.join(format!("{count}"));
        let name = name.to_str().unwrap();
        fs::write(mount.path(name), "").unwrap();
        fs::write(there.path(name), "theirs").unwrap();
    }
    sync(&mount);
    // As one line all of them would be more than the socket takes.
    assert!(COUNT * deep.as_os_str().len() > 1 << 20);
    let (code, told) = said(&mount, &["conflicts", mount.path("").to_str().unwrap()]);
    assert_eq!((code, told.lines().count()), (Some(0), COUNT));
    let (code, told) = said(&mount, &["status", mount.path("").to_str().unwrap()]);
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains(&format!("  conflict and {} more: ", COUNT - 10)), "{told}");
    let status = mount.status();
    assert_eq!(status["conflicts_total"], COUNT);
    let listed = status["conflicts"].as_array().unwrap();
    let paths: std::collections::BTreeSet<_> =
        listed.iter().map(|one| one["path"].as_str().unwrap()).collect();
    assert_eq!(paths.len(), COUNT);
    assert!(paths.iter().all(|path| mount.path(path).exists()));
}

/// A link that is kept beside another client's object is listed where it is.
#[test]
fn a_link_in_conflict_is_listed_where_it_is() {
    let server = Server::start(Kind::Larder);
    let there = Elsewhere::of(Kind::Larder, &server);
    let mount = Mount::new(&server, OPTIONS);
    for name in ["one", "two"] {
        fs::create_dir(mount.path(name)).unwrap();
    }
    fs::write(mount.path("one/file"), "ours").unwrap();
    sync(&mount);
    fs::hard_link(mount.path("one/file"), mount.path("two/link")).unwrap();
    fs::write(there.path("two/link"), "theirs").unwrap();
    sync(&mount);
    let listed = mount.status()["conflicts"].clone();
    let path = listed[0]["path"].as_str().unwrap();
    assert!(path.starts_with("two/link.conflict-"), "{listed}");
    assert_eq!(listed[0]["wanted"], "link");
    assert_eq!(fs::read(mount.path(path)).unwrap(), b"ours");
    assert_eq!(fs::metadata(mount.path("one/file")).unwrap().nlink(), 2);
    assert_eq!(fs::read(mount.path("two/link")).unwrap(), b"theirs");
}
