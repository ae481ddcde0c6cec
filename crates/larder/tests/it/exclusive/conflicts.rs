//! Names that another client has made as well, where there are many.

use super::*;

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
    let (code, told) = said(&mount, &["status", "--unsaved"]);
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
