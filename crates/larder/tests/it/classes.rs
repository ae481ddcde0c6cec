//! Durability classes, as programs and people see them.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::UNIX_EPOCH;

use rustix::fs::{OFlags, XattrFlags};
use rustix::io::Errno;

use crate::harness::{
    Kind, Mount, Server, eventually, kill, pattern, run, said, scratch, shell_as, succeed,
};
use crate::unsent::Writer;

/// Long enough that nothing is sent without a request.
const LATE: &str = "wback=3600";

/// Writes a file piece by piece; the server has each when it is written.
fn each_write_is_at_the_server(server: &Server, mount: &Mount, name: &str) {
    let mut file = fs::File::create(mount.path(name)).unwrap();
    let mut all = Vec::new();
    for piece in 0..20_u8 {
        let bytes = vec![piece; 1 + 900 * usize::from(piece)];
        file.write_all(&bytes).unwrap();
        all.extend(bytes);
        assert_eq!(fs::read(server.path(name)).unwrap(), all, "{name}");
    }
}

/// By the mount, by a rule, and by a class that was set; with a server of each kind.
#[test]
fn every_write_of_class_critical_is_at_the_server_when_it_returns() {
    let folder = scratch("larder-rules-");
    let rules = folder.path().join("rules.toml");
    fs::write(&rules, "[[rule]]\nglob = '*.db'\nclass = 'critical'\n").unwrap();
    let rules = format!("rules={}", rules.display());
    for kind in [Kind::Larder, Kind::Ganesha, Kind::Samba] {
        let server = Server::start(kind);
        let mount = Mount::new(&server, &[&rules, LATE]);
        each_write_is_at_the_server(&server, &mount, "ledger.db");
        // Another one is not.
        let mut usual = Writer::new(&mount, "usual");
        usual.write("text");
        eventually("it is written", || mount.status()["dirty"]["bytes"] == 4);
        assert_eq!(fs::read(server.path("usual")).unwrap(), b"");
        drop(usual);
        assert_eq!(fs::read(server.path("usual")).unwrap(), b"text");
        fs::create_dir(mount.path("dir")).unwrap();
        let dir = mount.path("dir").to_str().unwrap().to_owned();
        assert_eq!(said(&mount, &["class", "set", "critical", &dir]), (Some(0), String::new()));
        each_write_is_at_the_server(&server, &mount, "dir/file");
        let critical = Mount::new(&server, &["class=critical", LATE]);
        each_write_is_at_the_server(&server, &critical, "by-mount");
    }
}

/// What `larder class` and `larder explain` report for a file.
#[test]
fn a_class_is_explained_with_its_reason() {
    let server = Server::start(Kind::Larder);
    let mount = Mount::new(&server, &["rules=build", LATE]);
    for name in ["main.c", "main.o"] {
        fs::write(mount.path(name), "text").unwrap();
    }
    let at = |name: &str| mount.path(name).to_str().unwrap().to_owned();
    let told = |args: &[&str]| {
        let (code, told) = said(&mount, args);
        assert_eq!(code, Some(0), "{told}");
        told
    };
    let explained = told(&["class", "explain", &at("main.o")]);
    assert!(explained.contains("generated: rule 1 of rules=build glob=*.{o,"), "{explained}");
    assert!(explained.contains("close waits for nothing, fsync for local"), "{explained}");
    let explained = told(&["explain", &at("main.c")]);
    assert!(explained.contains("edited: the default: no rule applies"), "{explained}");
    assert!(explained.contains("level    durable\n"), "{explained}");
    assert_eq!(told(&["class", "get", &at("main.o")]), format!("{}: generated\n", at("main.o")));
    told(&["class", "set", "critical", &at("main.o"), &at("main.c")]);
    assert!(told(&["explain", &at("main.o")]).contains("critical: set for the file itself"));
    told(&["class", "unset", &at("main.o")]);
    assert!(told(&["class", "get", &at("main.o")]).ends_with(": generated\n"));
    let listed = told(&["class", "list", &at("")]);
    assert!(listed.contains("edited (default): close waits for durable"), "{listed}");
    assert_eq!(listed.lines().filter(|line| !line.starts_with(' ')).count(), 5);
    let (code, refused) = said(&mount, &["class", "set", "fast", &at("main.c")]);
    let is_told = refused.contains("there is no class fast, but critical, edited");
    assert!(code == Some(1) && is_told && refused.lines().count() == 1, "{refused}");

    // Without a mount.
    let tested = told(&["class", "rules", "test", "a/target/b", "--rules", "build"]);
    assert_eq!(tested, "generated: rule 2 of rules=build glob=target/\n");
    assert!(told(&["class", "rules", "test", "a/b.c"]).starts_with("edited: "));
    assert!(told(&["class", "list"]).contains("critical: durable at every write"));
}

#[test]
fn status_lists_what_is_unsaved_and_when_it_is_sent() {
    let server = Server::start(Kind::Larder);
    let mount = Mount::new(&server, &["wback=900"]);
    fs::create_dir(mount.path("dir")).unwrap();
    let list = || said(&mount, &["status", "--unsaved", mount.path("").to_str().unwrap()]);
    assert_eq!(list(), (Some(0), String::new()));
    // The kernel writes the one by itself.
    let mut writer = Writer::new(&mount, "dir/log");
    writer.write("text");
    eventually("it is written", || mount.status()["dirty"]["bytes"] == 4);
    let (code, listed) = list();
    let path = mount.path("dir/log");
    let begins = format!(
        "{}: at most 4 B unsent, class edited, memory, promised durable, sent in ",
        path.display()
    );
    assert!(code == Some(0) && listed.starts_with(&begins), "{listed}");
    let due = listed[begins.len()..].trim_end().strip_suffix('s').unwrap();
    assert!((1..=900).contains(&due.parse::<u32>().unwrap()), "{listed}");
    let (_, explained) = said(&mount, &["explain", path.to_str().unwrap()]);
    assert!(explained.contains("level    memory, promised durable, sent in "), "{explained}");
    let json = mount.json(&["status", "--unsaved"]);
    assert_eq!(json[0]["class"], "edited");
    assert_eq!(said(&mount, &["sync", mount.path("").to_str().unwrap()]).0, Some(0));
    assert_eq!(list(), (Some(0), String::new()));
    assert_eq!(fs::read(server.path("dir/log")).unwrap(), b"text");
}

fn xattr(path: &Path, name: &str) -> rustix::io::Result<String> {
    let mut value = [0; 256];
    let len = rustix::fs::getxattr(path, name, &mut value)?;
    Ok(String::from_utf8(value[..len].to_vec()).unwrap())
}

/// Also where the server has no extended attributes.
#[test]
fn extended_attributes_tell_of_classes_on_nfs() {
    let server = Server::start(Kind::Ganesha);
    let mount = Mount::new(&server, &["user_xattr"]);
    let file = mount.path("file");
    fs::write(&file, "text").unwrap();
    let set =
        |value: &[u8]| rustix::fs::setxattr(&file, "user.larder.class", value, XattrFlags::empty());
    assert_eq!(xattr(&file, "user.larder.class"), Err(Errno::NODATA));
    assert_eq!(set(b"fast"), Err(Errno::INVAL));
    set(b"critical").unwrap();
    assert_eq!(xattr(&file, "user.larder.class").unwrap(), "critical");
    let durability = xattr(&file, "user.larder.durability").unwrap();
    assert_eq!(durability, "level=durable promised=durable");
    let mut list = [0; 256];
    let len = rustix::fs::listxattr(&file, &mut list).unwrap();
    assert_eq!(&list[..len], b"user.larder.class\0");
    assert_eq!(xattr(&file, "user.other"), Err(Errno::OPNOTSUPP), "the server has none");
    rustix::fs::removexattr(&file, "user.larder.class").unwrap();
    assert_eq!(xattr(&file, "user.larder.class"), Err(Errno::NODATA));
    // A copy has the class that was set for the file. (Not one whose writes must be at the server:
    // the kernel writes the copy itself.)
    set(b"generated").unwrap();
    let copy = mount.path("copy");
    let copied = std::process::Command::new("cp").arg("-a").arg(&file).arg(&copy).status();
    assert!(copied.unwrap().success());
    assert_eq!(xattr(&copy, "user.larder.class").unwrap(), "generated");
    let open = fs::File::create(&copy).unwrap();
    let flags = XattrFlags::empty();
    let busy = rustix::fs::fsetxattr(&open, "user.larder.class", b"critical", flags);
    assert_eq!(busy, Err(Errno::BUSY));
}

/// A file is made, gets its class by its descriptor, and is written. The class counts for what is
/// written through that descriptor, and for its close.
#[test]
fn a_class_that_a_new_open_file_gets_by_an_attribute_counts_for_it() {
    for kind in [Kind::Larder, Kind::Ganesha] {
        let server = Server::start(kind);
        let mount = Mount::new(&server, &["user_xattr", LATE]);
        for (name, class, there) in
            [("made.o", Some("generated"), &b""[..]), ("usual.o", None, b"object")]
        {
            let mut open = fs::File::create_new(mount.path(name)).unwrap();
            if let Some(class) = class {
                let flags = XattrFlags::CREATE;
                rustix::fs::fsetxattr(&open, "user.larder.class", class.as_bytes(), flags).unwrap();
            }
            open.write_all(b"object").unwrap();
            drop(open);
            assert_eq!(fs::read(server.path(name)).unwrap(), there, "{kind:?} {name}");
        }
        assert_eq!(xattr(&mount.path("made.o"), "user.larder.class").unwrap(), "generated");
        let (_, told) = said(&mount, &["status", "--unsaved"]);
        let is_told = told.contains("made.o: 6 B unsent, class generated, ");
        assert!(is_told && told.lines().count() == 1, "{kind:?}: {told}");
        assert_eq!(said(&mount, &["sync", mount.path("").to_str().unwrap()]).0, Some(0));
        assert_eq!(fs::read(server.path("made.o")).unwrap(), b"object", "{kind:?}");
    }
}

/// By `XDG_CONFIG_HOME`, or else in the home directory: its classes and rules count for a mount and
/// for commands without a mount.
#[test]
fn the_file_of_the_user_is_found_by_a_mount_and_by_commands() {
    let home = scratch("larder-home-");
    let config = home.path().join(".config");
    let file = config.join("larder/larder.toml");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    let text = "[class.ledger]\nlike = 'critical'\n[[rule]]\nglob = '*.db'\nclass = 'ledger'\n";
    fs::write(&file, text).unwrap();
    let server = Server::start(Kind::Larder);
    let mut mount = Mount::unmounted(&server, &[LATE]);
    succeed(mount.command().env("XDG_CONFIG_HOME", &config));
    mount.mounted();
    each_write_is_at_the_server(&server, &mount, "a.db");
    let at = |name: &str| mount.path(name).to_str().unwrap().to_owned();
    let (_, explained) = said(&mount, &["class", "explain", &at("a.db")]);
    let why = format!("ledger: rule 1 of {} glob=*.db", file.display());
    assert!(explained.contains(&why), "{explained}");
    let (_, listed) = said(&mount, &["class", "list", &at("")]);
    assert!(listed.contains("ledger: durable at every write"), "{listed}");
    // The same without a mount, and by nobody whose file it is not.
    let elsewhere = home.path().join("elsewhere");
    for (xdg, home, is_found) in [
        (Some(&config), &elsewhere, true),
        (None, &home.path().to_owned(), true),
        (Some(&elsewhere), &home.path().to_owned(), false),
        (None, &elsewhere, false),
    ] {
        let said = |args: &[&str]| {
            let mut command = mount.larder();
            command.args(args).env_remove("XDG_CONFIG_HOME").env("HOME", home);
            command.envs(xdg.map(|dir| ("XDG_CONFIG_HOME", dir)));
            String::from_utf8(succeed(&mut command).stdout).unwrap()
        };
        let listed = said(&["class", "list"]);
        assert_eq!(listed.contains("ledger: durable"), is_found, "{xdg:?} {home:?}: {listed}");
        let tested = said(&["class", "rules", "test", "a/b.db"]);
        assert_eq!(tested.contains(&why), is_found, "{xdg:?} {home:?}: {tested}");
    }
}

/// A mount that cannot provide its classes is refused in one line, and a mount that is continued is
/// not.
#[test]
fn what_a_mount_cannot_keep_is_said_in_one_line() {
    let server = Server::start(Kind::Larder);
    let folder = scratch("larder-rules-");
    let rules = folder.path().join("rules.toml");
    let twice = "[class.twice]\nlike = 'critical'\ndurable = { copies = 2 }\n";
    let option = format!("rules={}", rules.display());
    let tried = |text: &str, options: &[&str]| {
        fs::write(&rules, text).unwrap();
        let all = [&[option.as_str()], options].concat();
        let mount = Mount::unmounted(&server, &all);
        let tried = mount.command().output().unwrap();
        assert!(!tried.status.success(), "{text}");
        let told = String::from_utf8(tried.stderr).unwrap();
        assert_eq!(told.lines().count(), 1, "{told}");
        told
    };
    assert!(tried(twice, &["class=twice"]).contains("no level durable in 2 copies"));
    assert!(tried("[[rule]]\nclass = 'fast'", &[]).contains("there is no class fast"));
    assert!(tried("[[rule]]\nregex = '('\nclass = 'edited'", &[]).contains("unclosed group"));
    assert!(tried("[[rul]]", &[]).contains("unknown field"));
    fs::write(&rules, twice).unwrap();
    let mut mount = Mount::unmounted(&server, &[&option, "class=scratch", LATE]);
    let told = mount.command().output().unwrap();
    assert!(told.status.success());
    mount.mounted();
    let told = String::from_utf8(told.stderr).unwrap();
    assert_eq!(
        told,
        "larder: class scratch: bytes are durable within 60 min: their names are there\n"
    );

    // The next worker cannot read the rules any more: it keeps the strongest promise of all.
    fs::write(&rules, "[[rul]]").unwrap();
    let worker = u32::try_from(mount.status()["worker_pid"].as_u64().unwrap()).unwrap();
    kill([worker, worker]);
    each_write_is_at_the_server(&server, &mount, "file");
    assert!(mount.log().contains("every file has the strongest class until that is mended"));
}

/// After a close, the bytes are on this machine's disk only, until they are due or a sync is
/// requested; or, on a volume, until another client wants the file.
#[test]
fn a_generated_file_is_kept_here_and_sent_later() {
    for kind in [Kind::Larder, Kind::Ganesha, Kind::Samba, Kind::Volume] {
        let server = Server::start(kind);
        let mut mount = Mount::new(&server, &["rules=build", "class=edited"]);
        let other = (kind == Kind::Volume).then(|| Mount::plain(&server, &["noac"]));
        let there = |name: &str| match &other {
            Some(other) => fs::read(other.path(name)).unwrap(),
            None => fs::read(server.path(name)).unwrap(),
        };
        let on_volumes = |bytes: &str| other.iter().flat_map(|_| bytes.bytes()).collect::<Vec<_>>();
        fs::write(mount.path("main.c"), "source").unwrap();
        fs::write(mount.path("main.o"), "object").unwrap();
        fs::write(mount.path("gone.o"), "object").unwrap();
        fs::write(mount.path("wanted.o"), "object").unwrap();
        assert_eq!(
            (there("main.c"), there("wanted.o")),
            (b"source".to_vec(), on_volumes("object"))
        );
        fs::remove_file(mount.path("gone.o")).unwrap();
        // This machine's disk has them within a second.
        eventually("they are kept", || {
            !said(&mount, &["status", "--unsaved"]).1.contains("generated, memory")
        });
        let (code, listed) = said(&mount, &["status", "--unsaved"]);
        let told = "main.o: 6 B unsent, class generated, local, promised durable, sent in ";
        let wait = listed.split_once(told).and_then(|(_, wait)| wait.split_once("s\n"));
        let wait: u64 = wait.and_then(|(wait, _)| wait.parse().ok()).unwrap_or_default();
        let count = if kind == Kind::Volume { 1 } else { 2 };
        assert!(code == Some(0) && listed.lines().count() == count, "{kind:?}: {listed}");
        // The kernel writes the file by itself, and the class gives it ten minutes.
        assert!((400..=600).contains(&wait), "{listed}");
        assert_eq!(fs::read(mount.path("main.o")).unwrap(), b"object");
        // A share's times are multiples of 100 ns.
        let modified = |path| {
            let time = fs::metadata(path).unwrap().modified().unwrap();
            time.duration_since(UNIX_EPOCH).unwrap().as_nanos() / 100
        };
        let written = modified(mount.path("main.o"));
        assert_eq!(said(&mount, &["sync", mount.path("").to_str().unwrap()]).0, Some(0));
        assert_eq!(there("main.o"), b"object");
        assert_eq!(modified(mount.path("main.o")), written, "{kind:?}");
        if other.is_none() {
            assert_eq!(modified(server.path("main.o")), written, "{kind:?}");
        }
        // The process that serves it dies: another one sends it.
        fs::write(mount.path("left.o"), "object").unwrap();
        let worker = u32::try_from(mount.status()["worker_pid"].as_u64().unwrap()).unwrap();
        kill([worker, worker]);
        assert_eq!(fs::read(mount.path("left.o")).unwrap(), b"object");
        // If it died before the kernel's RELEASE, by itself within 30 s.
        assert_eq!(said(&mount, &["sync", mount.path("").to_str().unwrap()]).0, Some(0));
        assert_eq!(there("left.o"), b"object");
        // So does the next mount.
        fs::write(mount.path("next.o"), "object").unwrap();
        mount.kill();
        mount.mount();
        assert_eq!(fs::read(mount.path("next.o")).unwrap(), b"object");
        eventually("it is at the server", || there("next.o") == b"object");
        // An unmount sends the rest.
        fs::write(mount.path("more.o"), "object").unwrap();
        assert_eq!(said(&mount, &["status", "--unsaved"]).1.lines().count(), 1, "{kind:?}");
        mount.unmount();
        assert_eq!(there("more.o"), b"object");
    }
}

/// Where no close waits for a disk, a file has the size and the time of what was written last as
/// soon as it is closed.
#[test]
fn what_a_close_does_not_wait_for_is_shown_after_it() {
    for kind in [Kind::Larder, Kind::Volume] {
        let server = Server::start(kind);
        for class in ["class=scratch", "class=volatile", "class=generated"] {
            let mount = Mount::new(&server, &["exclusive", class, "actimeo=86400"]);
            let path = mount.path(class);
            let shown = || {
                let about = fs::metadata(&path).unwrap();
                (about.len(), about.modified().unwrap())
            };
            fs::write(&path, "first").unwrap();
            for size in 6..20 {
                let mut open = fs::OpenOptions::new();
                open.append(true).open(&path).unwrap().write_all(b"x").unwrap();
                assert_eq!(shown().0, size, "{kind:?} {class}");
                let (_, before) = shown();
                let over = open.append(false).write(true).open(&path).unwrap();
                over.write_all_at(b"y", 0).unwrap();
                drop(over);
                assert_eq!(shown().0, size, "{kind:?} {class}");
                assert!(shown().1 > before, "{kind:?} {class}");
            }
        }
    }
}

/// A part of a file that a share has is sent at close, and so is a read-only file of a share.
#[test]
fn what_of_a_generated_file_is_not_kept_is_sent_at_close() {
    for kind in [Kind::Larder, Kind::Ganesha, Kind::Samba, Kind::Volume] {
        let server = Server::start(kind);
        let mount = Mount::new(&server, &["class=generated"]);
        fs::write(mount.path("file"), "object").unwrap();
        let sync = || said(&mount, &["sync", mount.path("").to_str().unwrap()]).0;
        assert_eq!(sync(), Some(0));
        let mut open = fs::OpenOptions::new();
        open.write(true).open(mount.path("file")).unwrap().write_all(b"OB").unwrap();
        open.create_new(true).mode(0o444);
        open.open(mount.path("read-only")).unwrap().write_all(b"object").unwrap();
        let listed = said(&mount, &["status", "--unsaved"]).1;
        let is_kept = kind != Kind::Samba;
        assert_eq!(listed.contains("file: 2 B unsent"), is_kept, "{kind:?}: {listed}");
        assert_eq!(listed.contains("read-only: 6 B unsent"), is_kept, "{kind:?}: {listed}");
        assert_eq!(sync(), Some(0));
        assert_eq!(fs::read(mount.path("file")).unwrap(), b"OBject");
        if kind != Kind::Volume {
            assert_eq!(fs::read(server.path("file")).unwrap(), b"OBject", "{kind:?}");
            assert_eq!(fs::read(server.path("read-only")).unwrap(), b"object", "{kind:?}");
        }
    }
}

/// On volumes: whoever opens a file that another mount has closed reads what that has written, and
/// what one has written with O_SYNC, or cut.
#[test]
fn who_reads_a_generated_file_of_a_volume_has_what_was_closed() {
    let server = Server::start(Kind::Volume);
    let mounts = [(); 2].map(|()| Mount::new(&server, &["class=generated"]));
    let [one, other] = [0, 1].map(|which: usize| mounts[which].path("file"));
    for round in 0..20_usize {
        let (writer, reader) = if round % 2 == 0 { (&one, &other) } else { (&other, &one) };
        let bytes = pattern(round as u64, 1 + round * 7_000);
        fs::write(writer, &bytes).unwrap();
        assert!(fs::read(reader).unwrap() == bytes, "{round}");
        assert_eq!(fs::metadata(reader).unwrap().len(), bytes.len() as u64);
        // A part of it, over what is kept.
        let mut open = fs::OpenOptions::new();
        let mut part = open.write(true).open(reader).unwrap();
        part.write_all(b"part").unwrap();
        drop(part);
        let flags = i32::try_from(OFlags::SYNC.bits()).unwrap();
        let mut synced = open.custom_flags(flags).open(reader).unwrap();
        synced.write_all(b"PA").unwrap();
        let start = &fs::read(writer).unwrap()[..2.min(bytes.len())];
        assert_eq!(start, &b"PA"[..2.min(bytes.len())], "{round}");
        synced.set_len(3).unwrap();
        drop(synced);
        assert_eq!(fs::read(writer).unwrap(), b"PAr", "{round}");
    }
    for mount in &mounts {
        assert_eq!(said(mount, &["status", "--unsaved"]), (Some(0), String::new()));
        assert_eq!(mount.status()["cache"]["set_aside"], 0);
    }
}

/// A mount whose cache is that of a machine that died before it had sent what it kept, while
/// another client wrote the same file.
#[test]
fn what_a_dead_machine_kept_is_not_sent_over_what_another_client_wrote() {
    for kind in [Kind::Larder, Kind::Samba, Kind::Volume] {
        let server = Server::start(kind);
        let mut mount = Mount::new(&server, &["class=generated"]);
        fs::write(mount.path("file"), "ours").unwrap();
        fs::write(mount.path("alone"), "ours").unwrap();
        assert_eq!(said(&mount, &["status", "--unsaved"]).1.lines().count(), 2, "{kind:?}");
        eventually("they are kept", || {
            !said(&mount, &["status", "--unsaved"]).1.contains("generated, memory")
        });
        mount.kill();
        let kept = mount.cache().with_extension("kept");
        run("cp", &["-a", mount.cache().to_str().unwrap(), kept.to_str().unwrap()]);
        // Its server does not wait for it any more.
        mount.mount();
        mount.unmount();
        let other = Mount::new(&server, &[]);
        fs::write(other.path("file"), "theirs!").unwrap();
        mount.set_cache(kept);
        mount.mount();
        let (code, told) = said(&mount, &["sync", mount.path("").to_str().unwrap()]);
        assert!(matches!(code, Some(0 | 1)), "{kind:?}: {told}");
        for (name, bytes) in [("file", "theirs!"), ("alone", "ours")] {
            assert_eq!(fs::read_to_string(mount.path(name)).unwrap(), bytes, "{kind:?}");
            assert_eq!(fs::read_to_string(other.path(name)).unwrap(), bytes, "{kind:?}");
        }
        for side in [&mount, &other] {
            eventually(&format!("{kind:?}: it is beside the other one"), || {
                beside(side).is_some_and(|path| fs::read(path).unwrap() == b"ours")
            });
        }
        eventually("and only there", || mount.status()["cache"]["set_aside"] == 0);
    }
}

/// What is beside `file`, because it met another client's change.
fn beside(mount: &Mount) -> Option<std::path::PathBuf> {
    let names = fs::read_dir(mount.path("")).unwrap().map(|entry| entry.unwrap().path());
    let mut all: Vec<_> =
        names.filter(|path| path.to_str().unwrap().contains("/file.conflict-")).collect();
    assert!(all.len() < 2, "{all:?}");
    all.pop()
}

/// The file with which another client has replaced ours stays. If the writer may make none beside
/// it, our bytes are set aside, and the conflict says why.
#[test]
fn what_met_another_change_is_set_aside_where_no_file_can_be_made() {
    let server = Server::start(Kind::Larder);
    let mount = Mount::new(&server, &["class=generated"]);
    fs::write(server.path("file"), "").unwrap();
    for (name, mode) in [("file", 0o666), ("", 0o755)] {
        fs::set_permissions(server.path(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let written = format!("printf ours > {}", mount.path("file").display());
    assert!(shell_as(1000, 100, &written));
    fs::write(server.path("file"), "theirs!").unwrap();
    let (code, told) = said(&mount, &["sync", mount.path("").to_str().unwrap()]);
    assert!(code == Some(1) && told.contains("file changed on the server"), "{told}");
    assert_eq!(fs::read(server.path("file")).unwrap(), b"theirs!");
    assert_eq!((mount.status()["cache"]["set_aside"].clone(), beside(&mount)), (1.into(), None));
    let (_, told) = said(&mount, &["conflicts", mount.path("").to_str().unwrap()]);
    let why = "written here, and changed by somebody else (no file beside it: permission denied); \
               it is kept in ";
    assert!(told.contains(why), "{told}");
    let aside: Vec<_> = fs::read_dir(mount.cache().join("set-aside")).unwrap().collect();
    let path = aside[0].as_ref().unwrap().path();
    assert!(path.to_str().unwrap().ends_with("_file"), "{path:?}");
    assert_eq!(fs::read(&path).unwrap(), b"ours");
    // It is listed until a person has removed it.
    let unsaved = || said(&mount, &["status", "--unsaved"]);
    let told =
        format!("{}: the server refused this: copy what you need and remove it\n", path.display());
    assert_eq!(unsaved(), (Some(0), told));
    fs::remove_file(path).unwrap();
    assert_eq!(unsaved(), (Some(0), String::new()));
}

/// A third-party program that uses only the header.
const HINTS: &str = r#"
#include "larder.h"
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

int main(int count, char **args)
{
	int fd = open(args[1], O_WRONLY | O_CREAT, 0644);

	for (int i = 2; i < count; i++)
		printf("%s ", larder_hint(fd, args[i]) ? strerrorname_np(errno) : "taken");
	write(fd, "text", 4);
	return close(fd);
}
"#;

/// By the ioctl of the header, which a C compiler reads; on another file system it is refused.
#[test]
fn a_program_gives_its_open_file_a_class() {
    let folder = scratch("larder-hints-");
    let (source, program) = (folder.path().join("hints.c"), folder.path().join("hints"));
    fs::write(&source, format!("#define _GNU_SOURCE\n{HINTS}")).unwrap();
    let include = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../../include");
    let mut cc = Command::new("cc");
    succeed(cc.args(["-Wall", "-Werror=implicit", include, "-o"]).arg(&program).arg(&source));
    let hint = |path: &Path, classes: &[&str]| {
        let output = Command::new(&program).arg(path).args(classes).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let server = Server::start(Kind::Larder);
    let mount = Mount::new(&server, &[LATE]);
    let there = |name: &str| fs::read(server.path(name)).unwrap();
    let long = "a-name-that-is-longer-than-any-class-has";
    let told = hint(&mount.path("file"), &["nosuch", "", long, "generated"]);
    assert_eq!(told, "EINVAL EINVAL EINVAL taken ");
    assert_eq!(there("file"), b"", "its close waits for this machine's disk");
    hint(&mount.path("file"), &[]);
    assert_eq!(there("file"), b"text");
    assert_eq!(hint(&mount.path("other"), &["critical"]), "EBUSY ", "the kernel writes it");
    assert_eq!(hint(&folder.path().join("local"), &["generated"]), "ENOTTY ");
}
