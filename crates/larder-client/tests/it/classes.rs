//! Durability classes of files.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use larder_class::{Classes, Level, Sources, Why, load};
use larder_client::{Due, Durability, Here, Options, offer};
use larder_vfs::{
    Cred, Error, FileSystem, Ino, New, OpenId, Remote, Result, SetAttr, SetXattr, XattrOnly,
};

use crate::rig::{Open, Rig, WRITE, pass, root};

/// Options with these classes and rules.
fn with(toml: &str) -> Options {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("larder.toml");
    std::fs::write(&path, toml).unwrap();
    let sources = Sources { files: vec![path], ..Sources::default() };
    Options {
        classes: Arc::new(
            load(&sources, &offer("a mount", Here::default(), Duration::from_secs(30))).unwrap(),
        ),
        ..Options::default()
    }
}

const RULES: &str = "[class.log]\nlike = 'edited'\ndurable = '5s'\n\
                     [[rule]]\nglob = '*.db'\nclass = 'critical'\n\
                     [[rule]]\nglob = '*.log'\nclass = 'log'\n\
                     [[rule]]\nuid = 7\nclass = 'critical'";

/// What the server has of a file in the root directory.
async fn at_server(rig: &Rig, name: &str) -> Vec<u8> {
    let top = rig.server.root().await.unwrap().handle;
    let found = rig.server.lookup(&root(), &top, name.as_ref()).await.unwrap().found.unwrap();
    rig.server.read(&root(), &found.handle, None, 0, 1 << 20).await.unwrap().data.to_vec()
}

fn name_of(rig: &Rig, ino: Ino) -> String {
    rig.client.class(ino).unwrap().class.name.clone()
}

async fn set(rig: &Rig, cred: &Cred, ino: Ino, class: Option<&str>) -> Result<()> {
    rig.client.set_class(cred, ino, class).await
}

#[tokio::test]
async fn a_write_of_class_critical_is_at_the_server_when_it_is_answered() {
    let rig = Rig::new(with(RULES)).await;
    let (db, other) = (rig.create("a.db").await, rig.create("other").await);
    for (count, text) in [(1, "a"), (2, "b"), (3, "c")] {
        rig.server.reset_calls();
        db.write(0, text.as_bytes()).await.unwrap();
        assert_eq!(at_server(&rig, "a.db").await, text.as_bytes(), "{count}");
        assert_eq!(rig.server.calls("write"), 1);
        other.write(0, text.as_bytes()).await.unwrap();
        assert_eq!(rig.server.calls("write"), 1, "nobody waits for the other one");
    }
    // The error of the server is the answer to that write.
    rig.server.set_full(true);
    assert_eq!(db.write(1, b"x").await, Err(Error::NoSpace));
    rig.server.set_full(false);
    db.close().await.unwrap();
    other.close().await.unwrap();
    assert_eq!(at_server(&rig, "other").await, b"c");
}

/// A hint applies to one open file, and a more specific class has priority.
#[tokio::test]
async fn a_hint_gives_one_open_file_a_class() {
    let rig = Rig::new(with(RULES)).await;
    let hint = |cred: Cred, open: OpenId, class: &str| {
        rig.client.hint_class(&cred, Ino::ROOT, open, class.to_owned()).wait()
    };
    let (one, other) = (rig.create("file").await, rig.open(&root(), "file", WRITE).await.unwrap());
    one.write(0, b"early").await.unwrap();
    hint(root(), one.id, "critical").await.unwrap();
    assert_eq!(at_server(&rig, "file").await, b"early", "more durable: it is sent first");
    one.write(5, b" two").await.unwrap();
    assert_eq!(at_server(&rig, "file").await, b"early two");
    other.write(9, b" three").await.unwrap();
    assert_eq!(at_server(&rig, "file").await, b"early two", "nobody gave that open file a hint");
    assert_eq!(name_of(&rig, one.ino), "edited", "the file has no other class");
    // If the server refuses what was written before, the class stays as it was.
    rig.server.set_full(true);
    assert_eq!(hint(root(), other.id, "critical").await, Err(Error::NoSpace));
    rig.server.set_full(false);
    other.write(15, b" four").await.unwrap();
    assert_eq!(at_server(&rig, "file").await, b"early two");
    assert_eq!(hint(root(), one.id, "nosuch").await, Err(Error::InvalidArgument));
    assert_eq!(hint(root(), OpenId(1 << 40), "edited").await, Err(Error::Stale));
    let stranger = Cred::new(1000, 1000, &[]);
    assert_eq!(hint(stranger, one.id, "edited").await, Err(Error::NotPermitted));
    set(&rig, &root(), one.ino, Some("edited")).await.unwrap();
    hint(root(), one.id, "critical").await.unwrap();
    other.close().await.unwrap();
    one.write(0, b"late!").await.unwrap();
    assert_eq!(at_server(&rig, "file").await, b"early two three four", "what was set is nearer");
    one.close().await.unwrap();
    assert_eq!(at_server(&rig, "file").await, b"late! two three four");
}

/// A hint applies before the class of a directory, and before a rule, whichever is stronger; to the
/// file's next open they apply again.
#[tokio::test]
async fn a_hint_comes_before_the_class_of_a_directory_and_before_a_rule() {
    let rig = Rig::new(with(RULES)).await;
    let mut dirs = Vec::new();
    for class in ["critical", "edited"] {
        let new = New::Directory;
        let made = rig.client.make(&root(), Ino::ROOT, class.as_ref(), new, SetAttr::default());
        dirs.push(made.wait().await.unwrap().ino);
        set(&rig, &root(), dirs[dirs.len() - 1], Some(class)).await.unwrap();
    }
    for (dir, path, class, hint) in [
        (dirs[0], "critical/file", "critical", "edited"),
        (dirs[1], "edited/file", "edited", "critical"),
        // There the directory comes before the rule, and the hint before both.
        (dirs[1], "edited/a.db", "edited", "critical"),
        (Ino::ROOT, "a.db", "critical", "edited"),
        (Ino::ROOT, "a.log", "log", "critical"),
    ] {
        let name = path.rsplit('/').next().unwrap();
        let open = rig.create_in(dir, name).await;
        assert_eq!(name_of(&rig, open.ino), class, "{path}");
        let write = async |open: &Open<'_>, class: &str| {
            let (at, unstable) = (Some(open.id), larder_vfs::Stability::Unstable);
            let written = rig.client.write(&root(), open.ino, at, 0, b"text", unstable);
            let is_there =
                written.wait().await.unwrap().stability == larder_vfs::Stability::FileSync;
            assert_eq!(is_there, class == "critical", "{path}");
        };
        write(&open, class).await;
        rig.client.hint_class(&root(), open.ino, open.id, hint.to_owned()).wait().await.unwrap();
        write(&open, hint).await;
        assert_eq!(name_of(&rig, open.ino), class, "{path}: no open file decides on that");
        open.close().await.unwrap();
        let again = rig.open(&root(), path, WRITE).await.unwrap();
        write(&again, class).await;
        again.close().await.unwrap();
    }
}

/// A front door that opens nothing: each write uses the class of the file.
#[tokio::test]
async fn a_write_without_an_open_file_has_the_class_of_its_file() {
    let rig = Rig::new(with(RULES)).await;
    for name in ["a.db", "other"] {
        rig.put(name, b"").await;
        let ino = rig.find(name).await.unwrap();
        let stability = larder_vfs::Stability::Unstable;
        let written = rig.client.write(&root(), ino, None, 0, b"bytes", stability);
        let stability = written.wait().await.unwrap().stability;
        let is_critical = name == "a.db";
        assert_eq!(stability == larder_vfs::Stability::FileSync, is_critical);
        assert_eq!(at_server(&rig, name).await == b"bytes", is_critical);
    }
}

/// Sizes are known here, what is unsent included; where bytes are is for the server to say.
#[tokio::test]
async fn where_bytes_are_is_for_the_server_to_say() {
    let rig = Rig::new(with(RULES)).await;
    let file = rig.create("file").await;
    file.write(0, b"12345").await.unwrap();
    rig.server.reset_calls();
    assert_eq!(rig.client.size(file.ino), Ok(Some(5)));
    assert_eq!(rig.client.size(Ino::ROOT), Ok(None), "a directory has no bytes");
    assert_eq!(rig.client.size(Ino(4711)), Err(Error::Stale));
    let stored = rig.client.stored(&root(), file.ino, Duration::from_secs(60)).await;
    assert_eq!(stored, Err(Error::NotSupported), "this one does not");
    let stored = rig.client.stored(&root(), Ino(4711), Duration::from_secs(60)).await;
    assert_eq!(stored, Err(Error::Stale));
    assert_eq!(at_server(&rig, "file").await, b"", "asking sends nothing");
}

#[tokio::test(start_paused = true)]
async fn a_class_with_a_deadline_has_its_bytes_at_the_server_by_then() {
    let rig = Rig::new(with(RULES)).await;
    let (log, other) = (rig.create("a.log").await, rig.create("other").await);
    log.write(0, b"line").await.unwrap();
    other.write(0, b"line").await.unwrap();
    let due = rig.client.durability(log.ino).unwrap();
    let promised = Some(Level::Durable);
    let expected = Durability { reached: Level::Memory, promised, due: due.due };
    assert_eq!(due, expected);
    assert!(matches!(due.due, Some(Due::In(time)) if time <= Duration::from_secs(5)), "{due}");
    pass(&rig.clock, Duration::from_secs(6)).await;
    assert_eq!(at_server(&rig, "a.log").await, b"line");
    assert_eq!(at_server(&rig, "other").await, b"", "that is for the mount to say");
    let reached = rig.client.durability(log.ino).unwrap();
    assert_eq!(reached.to_string(), "level=durable promised=durable");
    // A process that opens the other file with that class makes its bytes be sent as soon, too.
    set(&rig, &root(), other.ino, Some("log")).await.unwrap();
    assert_eq!(at_server(&rig, "other").await, b"line", "more durable: it is sent first");
    other.write(4, b" two").await.unwrap();
    pass(&rig.clock, Duration::from_secs(6)).await;
    assert_eq!(at_server(&rig, "other").await, b"line two");
}

/// The shortest deadline among the open files that may write counts for all of the file.
#[tokio::test(start_paused = true)]
async fn the_shortest_deadline_of_a_file_counts() {
    let rules =
        "[class.soon]\nlike = 'edited'\ndurable = '5s'\n[[rule]]\nsize_min = 1\nclass = 'soon'";
    let rig = Rig::new(with(rules)).await;
    rig.put("file", b"").await;
    let usual = rig.open(&root(), "file", WRITE).await.unwrap();
    usual.write(0, b"bytes").await.unwrap();
    pass(&rig.clock, Duration::from_secs(6)).await;
    assert_eq!(at_server(&rig, "file").await, b"");
    let soon = rig.open(&root(), "file", WRITE).await.unwrap();
    pass(&rig.clock, Duration::from_secs(6)).await;
    assert_eq!(at_server(&rig, "file").await, b"bytes");
    usual.write(0, b"BYTES").await.unwrap();
    pass(&rig.clock, Duration::from_secs(6)).await;
    assert_eq!(at_server(&rig, "file").await, b"BYTES", "also by way of the other one");
    soon.close().await.unwrap();
    usual.close().await.unwrap();
}

#[tokio::test]
async fn a_class_is_set_for_files_and_directories() {
    let rig = Rig::new(with(RULES)).await;
    let made =
        rig.client.make(&root(), Ino::ROOT, "dir".as_ref(), New::Directory, SetAttr::default());
    let dir = made.wait().await.unwrap().ino;
    let file = rig.create_in(dir, "file").await;
    let db = rig.create_in(dir, "a.db").await;
    assert_eq!(rig.client.class(file.ino).unwrap().why, Why::Default);
    assert!(matches!(rig.client.class(db.ino).unwrap().why, Why::Rule(_)));
    set(&rig, &root(), dir, Some("generated")).await.unwrap();
    for ino in [file.ino, db.ino] {
        let choice = rig.client.class(ino).unwrap();
        assert_eq!(choice.class.name, "generated", "a directory comes before rules");
        assert_eq!(choice.why, Why::Directory(PathBuf::from("dir")));
    }
    assert_eq!(rig.client.class(dir).unwrap().why, Why::Own);
    set(&rig, &root(), file.ino, Some("critical")).await.unwrap();
    assert_eq!(rig.client.class(file.ino).unwrap().why, Why::Own);
    file.write(0, b"x").await.unwrap();
    assert_eq!(rig.client.unsent(&|_| true).files, 0, "it was open before");
    set(&rig, &root(), dir, None).await.unwrap();
    assert_eq!(name_of(&rig, db.ino), "critical");
    assert_eq!(set(&rig, &root(), file.ino, Some("fast")).await, Err(Error::InvalidArgument));
    assert_eq!(name_of(&rig, file.ino), "critical");
    let target = New::Symlink("x".into());
    let link = rig.client.make(&root(), Ino::ROOT, "link".as_ref(), target, SetAttr::default());
    let link = link.wait().await.unwrap().ino;
    assert_eq!(set(&rig, &root(), link, Some("edited")).await, Err(Error::NotPermitted));
}

#[tokio::test]
async fn strengthening_sends_first_or_changes_nothing() {
    let rig = Rig::new(Options::default()).await;
    let open = rig.create("file").await;
    open.write(0, b"before").await.unwrap();
    rig.server.set_full(true);
    assert_eq!(set(&rig, &root(), open.ino, Some("critical")).await, Err(Error::NoSpace));
    assert_eq!(name_of(&rig, open.ino), "edited");
    open.write(0, b"BEFORE").await.unwrap();
    rig.server.set_full(false);
    assert_eq!(at_server(&rig, "file").await, b"");
    set(&rig, &root(), open.ino, Some("critical")).await.unwrap();
    assert_eq!(at_server(&rig, "file").await, b"BEFORE");
    open.write(0, b"after!").await.unwrap();
    assert_eq!(at_server(&rig, "file").await, b"after!");
    set(&rig, &root(), open.ino, Some("edited")).await.unwrap();
    open.write(0, b"weaker").await.unwrap();
    assert_eq!(at_server(&rig, "file").await, b"after!");
    open.close().await.unwrap();
}

#[tokio::test]
async fn only_the_owner_weakens_a_class() {
    let rig = Rig::new(Options::default()).await;
    rig.put("file", b"bytes").await;
    let owner = Cred::new(1000, 1000, &[]);
    let own = SetAttr { uid: Some(1000), gid: Some(1000), mode: Some(0o666), ..SetAttr::default() };
    rig.set("file", own).await;
    let ino = rig.find("file").await.unwrap();
    let other = Cred::new(2000, 2000, &[]);
    set(&rig, &other, ino, Some("critical")).await.unwrap();
    for weaker in [Some("edited"), Some("scratch"), None] {
        assert_eq!(set(&rig, &other, ino, weaker).await, Err(Error::NotPermitted));
        assert_eq!(name_of(&rig, ino), "critical");
    }
    set(&rig, &owner, ino, Some("edited")).await.unwrap();
    set(&rig, &root(), ino, Some("critical")).await.unwrap();
    set(&rig, &owner, ino, None).await.unwrap();
    // A caller that may not write the file changes nothing at all.
    rig.set("file", SetAttr { mode: Some(0o644), ..SetAttr::default() }).await;
    assert_eq!(set(&rig, &other, ino, Some("critical")).await, Err(Error::AccessDenied));
}

#[tokio::test]
async fn a_class_that_was_set_outlives_unmounts_and_boots_and_goes_with_its_file() {
    let rig = Rig::new(Options::default()).await;
    for name in ["file", "other"] {
        rig.put(name, b"bytes").await;
        set(&rig, &root(), rig.find(name).await.unwrap(), Some("critical")).await.unwrap();
    }
    let crashed = rig.disk.crash(larder_io::Image::Synced);
    let after = rig.on_image(crashed, rig.server.another_client(), START).await;
    assert_eq!(name_of(&after, after.find("file").await.unwrap()), "critical", "at once");
    let rig = rig.remount().await;
    assert_eq!(name_of(&rig, rig.find("file").await.unwrap()), "critical");
    rig.remove("file").await.unwrap();
    rig.put("file", b"another one").await;
    assert_eq!(name_of(&rig, rig.find("file").await.unwrap()), "edited");
    let rig = rig.reboot().await;
    assert_eq!(name_of(&rig, rig.find("other").await.unwrap()), "critical");
    assert_eq!(rig.cache().classes().len(), 1);
}

/// A class that was set is a record of the cache. Without that, rules decide again, and then the
/// mount.
#[tokio::test]
async fn after_the_loss_of_the_cache_the_rules_decide_anew() {
    let options = Options { has_xattrs: true, ..with(RULES) };
    let rig = Rig::new(options.clone()).await;
    for (name, class) in [("a.db", "edited"), ("a.log", "critical"), ("other", "critical")] {
        rig.put(name, b"bytes").await;
        let ino = rig.find(name).await.unwrap();
        set(&rig, &root(), ino, Some(class)).await.unwrap();
        assert_eq!(name_of(&rig, ino), class, "{name}");
    }
    // Its disk is empty.
    let rig = Rig::of_server(rig.server.another_client(), options).await;
    assert_eq!(rig.cache().classes().len(), 0);
    for (name, class) in [("a.db", "critical"), ("a.log", "log"), ("other", "edited")] {
        let open = rig.open(&root(), name, WRITE).await.unwrap();
        let choice = rig.client.class(open.ino).unwrap();
        assert_eq!(choice.class.name, class, "{name}");
        assert_eq!(matches!(choice.why, Why::Rule(_)), name != "other", "{name}: {}", choice.why);
        let own = rig.client.xattr(&root(), open.ino, "larder.class".as_ref()).wait().await;
        assert_eq!(own, Ok(None), "{name}");
        open.write(0, b"BYTES").await.unwrap();
        assert_eq!(at_server(&rig, name).await == b"BYTES", class == "critical", "{name}");
        open.close().await.unwrap();
    }
}

const START: larder_client::Start = larder_client::Start::NewMount;

/// An open file keeps its class when the daemon dies, whatever the rules say then.
#[tokio::test]
async fn an_open_file_keeps_its_class_when_the_daemon_dies() {
    let rig = Rig::new(with(RULES)).await;
    let (db, log, other) =
        (rig.create("a.db").await, rig.create("a.log").await, rig.create("other").await);
    set(&rig, &root(), other.ino, Some("critical")).await.unwrap();
    let names = [db.names(), log.names(), other.names()];
    let rig = rig.resume_with(Options::default()).await;
    for (name, at, is_synchronous) in [("a.db", 0, true), ("a.log", 1, true), ("other", 2, true)] {
        let open = rig.again(names[at]);
        open.write(0, b"bytes").await.unwrap();
        // The class of the log is not known any more: it has the strongest.
        assert_eq!(at_server(&rig, name).await == b"bytes", is_synchronous, "{name}");
        open.close().await.unwrap();
    }
}

#[tokio::test]
async fn a_class_that_is_not_known_any_more_is_the_strongest() {
    let rig = Rig::new(with(RULES)).await;
    rig.put("file", b"").await;
    set(&rig, &root(), rig.find("file").await.unwrap(), Some("log")).await.unwrap();
    let rig = rig.kill_with(Options::default()).await;
    let choice = rig.client.class(rig.find("file").await.unwrap()).unwrap();
    assert_eq!((choice.class.name.as_str(), choice.why), ("critical", Why::Lost("log".into())));
    let open = rig.open(&root(), "file", WRITE).await.unwrap();
    open.write(0, b"x").await.unwrap();
    assert_eq!(at_server(&rig, "file").await, b"x");
}

/// Editors write a new file and rename it over the one that they edit.
#[tokio::test]
async fn a_file_that_replaces_another_one_has_its_class() {
    let rig = Rig::new(Options::default()).await;
    rig.put("file", b"old").await;
    let class = Some("critical");
    set(&rig, &root(), rig.find("file").await.unwrap(), class).await.unwrap();
    let new = rig.create("file.new").await;
    new.write(0, b"new").await.unwrap();
    rig.server.set_full(true);
    assert_eq!(rig.rename("file.new", "file").await, Err(Error::NoSpace), "it is sent first");
    rig.server.set_full(false);
    rig.rename("file.new", "file").await.unwrap();
    assert_eq!(at_server(&rig, "file").await, b"new");
    assert_eq!(name_of(&rig, new.ino), "critical");
    let rig = rig.remount().await;
    assert_eq!(name_of(&rig, rig.find("file").await.unwrap()), "critical");
    // One that has a class of its own keeps it.
    rig.put("other", b"bytes").await;
    set(&rig, &root(), rig.find("other").await.unwrap(), Some("edited")).await.unwrap();
    rig.rename("other", "file").await.unwrap();
    assert_eq!(name_of(&rig, rig.find("file").await.unwrap()), "edited");
}

#[tokio::test]
async fn classes_are_chosen_by_user() {
    let rig = Rig::new(with(RULES)).await;
    rig.put("file", b"").await;
    rig.set("file", SetAttr { mode: Some(0o666), ..SetAttr::default() }).await;
    let writer = Cred::new(7, 7, &[]);
    let (by_rule, usual) = (
        rig.open(&writer, "file", WRITE).await.unwrap(),
        rig.open(&root(), "file", WRITE).await.unwrap(),
    );
    usual.write(0, b"usual").await.unwrap();
    assert_eq!(at_server(&rig, "file").await, b"");
    by_rule.write(0, b"U").await.unwrap();
    assert_eq!(at_server(&rig, "file").await, b"Usual");
}

/// The program that opens a file is this one.
#[tokio::test]
async fn classes_are_chosen_by_program() {
    let own = larder_io::program_of(std::process::id()).unwrap().into_string().unwrap();
    for (program, class) in [(own.as_str(), true), ("another", false)] {
        let rig =
            Rig::new(with(&format!("[[rule]]\nprogram = '{program}'\nclass = 'critical'"))).await;
        rig.put("file", b"").await;
        let me = Cred { pid: std::process::id(), ..root() };
        let open = rig.open(&me, "file", WRITE).await.unwrap();
        open.write(0, b"x").await.unwrap();
        assert_eq!(at_server(&rig, "file").await == b"x", class, "{program}");
    }
}

fn xattr(value: Option<&str>, only: Option<XattrOnly>) -> SetXattr {
    let value = value.map(|value| Bytes::copy_from_slice(value.as_bytes()));
    SetXattr { name: "larder.class".into(), value, only }
}

#[tokio::test]
async fn an_extended_attribute_is_the_class_and_is_never_the_servers() {
    let rig = Rig::new(Options { has_xattrs: true, ..with(RULES) }).await;
    rig.put("file", b"bytes").await;
    let ino = rig.find("file").await.unwrap();
    let change = async |set: SetXattr| rig.client.set_xattr(&root(), ino, set).wait().await;
    let get = async |name: &str| rig.client.xattr(&root(), ino, name.as_ref()).wait().await;
    let names = async || rig.client.xattrs(&root(), ino).wait().await.unwrap();
    rig.server.reset_calls();
    assert_eq!(get("larder.class").await, Ok(None));
    assert_eq!(change(xattr(None, None)).await, Err(Error::NoAttribute));
    assert_eq!(
        change(xattr(Some("critical"), Some(XattrOnly::Existing))).await,
        Err(Error::NoAttribute)
    );
    assert_eq!(change(xattr(Some("critical"), Some(XattrOnly::New))).await, Ok(()));
    assert_eq!(change(xattr(Some("edited"), Some(XattrOnly::New))).await, Err(Error::Exists));
    assert_eq!(change(xattr(Some("fast"), None)).await, Err(Error::InvalidArgument));
    assert_eq!(get("larder.class").await, Ok(Some("critical".into())));
    assert_eq!(name_of(&rig, ino), "critical");
    assert_eq!(rig.server.calls_total(), 0, "it is not the server's");
    let durability = get("larder.durability").await;
    assert_eq!(durability, Ok(Some("level=durable promised=durable".into())));
    let own = SetXattr { name: "larder.durability".into(), ..xattr(Some("x"), None) };
    assert_eq!(change(own).await, Err(Error::NotPermitted));
    let other = SetXattr { name: "other".into(), ..xattr(Some("1"), None) };
    change(other).await.unwrap();
    assert_eq!(names().await, ["other", "larder.class"]);
    change(xattr(None, None)).await.unwrap();
    assert_eq!(names().await, ["other"]);
    let again = Cred { retried: true, ..root() };
    let again = rig.client.set_xattr(&again, ino, xattr(None, None)).wait().await;
    assert_eq!(again, Ok(()), "a first try may have done it");
}

#[tokio::test]
async fn a_read_only_mount_sets_no_class() {
    let rig = Rig::new(Options::default()).await;
    rig.put("file", b"").await;
    let read_only = Options { read_only: true, ..Options::default() };
    let rig = rig.kill_with(read_only).await;
    let ino = rig.find("file").await.unwrap();
    assert_eq!(set(&rig, &root(), ino, Some("critical")).await, Err(Error::ReadOnly));
    assert_eq!(rig.client.classes().mount().name, "edited");
    assert!(Classes::shipped(&offer("a mount", Here::default(), Duration::from_secs(30))).is_ok());
}
