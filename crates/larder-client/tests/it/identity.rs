//! A server that gives the handle of a removed file to the next one it makes, as SMB servers do
//! with inode numbers: the two are never mistaken for one.

use std::ffi::OsStr;

use larder_client::Options;
use larder_vfs::{Error, FileSystem, Ino, New, Remote, Removal, SetAttr};

use crate::rig::{READ, Rig, WRITE, root};

/// How a file's last name is removed.
#[derive(Clone, Copy, Debug)]
enum End {
    /// It is removed while it is closed.
    Removed,
    /// It was removed while it was open, and is closed.
    Closed,
    /// Another file is renamed to its name.
    Replaced,
    /// Another client removes it.
    RemovedElsewhere,
}

/// The state in which the new file is made.
#[derive(Clone, Copy, Debug)]
enum Answer {
    /// The answer to the removal is in flight.
    Pending,
    /// All have been answered.
    Taken,
}

const ENDS: [End; 4] = [End::Removed, End::Closed, End::Replaced, End::RemovedElsewhere];

async fn rig() -> Rig {
    let rig = Rig::new(Options::default()).await;
    rig.server.give_handles_again();
    rig
}

/// Makes `f` while the file `t` is removed in this way, and checks that it is a file of its own.
async fn a_new_file_is_itself(end: End, answer: Answer) {
    let what = format!("{end:?} {answer:?}");
    let rig = rig().await;
    let foreigner = rig.foreigner().await;
    rig.put("other", b"other").await;
    rig.put("t", b"old data, longer than the new").await;
    let old = rig.find("t").await.unwrap();
    let number = rig.stat("t").await.attr.fileid;
    let open = rig.open(&root(), "t", WRITE).await.unwrap();
    let open = match end {
        End::Closed => {
            open.write(0, b"unsent").await.unwrap();
            rig.remove("t").await.unwrap();
            Some(open)
        }
        _ => {
            open.close().await.unwrap();
            None
        }
    };
    let method = if matches!(end, End::Replaced) { "rename" } else { "remove" };
    rig.server.hold_answers(matches!(answer, Answer::Pending).then_some(method));
    rig.server.reset_calls();
    let made = {
        let going = async {
            match (end, open) {
                (End::Closed, open) => open.unwrap().close().await.unwrap(),
                (End::Removed, _) => rig.remove("t").await.unwrap(),
                (End::Replaced, _) => rig.rename("other", "t").await.unwrap(),
                (End::RemovedElsewhere, _) => foreigner.remove("t").await.unwrap(),
            }
        };
        let making = async {
            while rig
                .server
                .getattr(&root(), &rig.client.handle(old).wait().await.unwrap())
                .await
                .is_ok()
            {
                tokio::task::yield_now().await;
            }
            let made = rig.create("f").await;
            rig.server.hold_answers(None);
            made
        };
        match answer {
            Answer::Pending => tokio::join!(going, making).1,
            Answer::Taken => {
                going.await;
                rig.create("f").await
            }
        }
    };
    assert_ne!(made.ino, old, "{what}");
    assert_eq!(rig.stat("f").await.attr.fileid, number, "{what}: the handle came again");
    made.write(0, b"new").await.unwrap();
    made.close().await.unwrap();
    assert_eq!(foreigner.cat("f").await, b"new", "{what}: at the server");
    assert_eq!(rig.cat("f").await, b"new", "{what}");
    // A caller that still has the number of the old file gets nothing of the new one.
    let opened = rig.client.open(&root(), old, READ).wait().await;
    assert_eq!(opened.err(), Some(Error::Stale), "{what}");
    let set = SetAttr { size: Some(0), ..SetAttr::default() };
    assert_eq!(rig.client.setattr(&root(), old, None, set).wait().await.unwrap_err(), Error::Stale);
    let rig = rig.remount().await;
    assert_eq!(rig.cat("f").await, b"new", "{what}: after a remount");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_file_is_not_taken_for_a_removed_one_whose_handle_it_got() {
    for end in ENDS {
        a_new_file_is_itself(end, Answer::Taken).await;
        if !matches!(end, End::RemovedElsewhere) {
            a_new_file_is_itself(end, Answer::Pending).await;
        }
    }
}

/// The same for a directory: it has none of the names of the earlier one.
#[tokio::test]
async fn a_new_directory_is_not_taken_for_a_removed_one() {
    let rig = rig().await;
    let make = async |name: &str| {
        let set = SetAttr { mode: Some(0o755), ..SetAttr::default() };
        let made = rig.client.make(&root(), Ino::ROOT, OsStr::new(name), New::Directory, set);
        made.wait().await.unwrap().ino
    };
    let old = make("d").await;
    rig.create_in(old, "a").await.close().await.unwrap();
    let remove = |dir, name, what| rig.client.remove(&root(), dir, OsStr::new(name), what);
    remove(old, "a", Removal::File).wait().await.unwrap();
    rig.server.hold_answers(Some("remove"));
    let making = async {
        let handle = rig.client.handle(old).wait().await.unwrap();
        while rig.server.getattr(&root(), &handle).await.is_ok() {
            tokio::task::yield_now().await;
        }
        let made = make("e").await;
        rig.server.hold_answers(None);
        made
    };
    let going = remove(Ino::ROOT, "d", Removal::Directory);
    let (gone, made) = tokio::join!(going.wait(), making);
    gone.unwrap();
    assert_ne!(made, old);
    rig.create_in(made, "b").await.close().await.unwrap();
    assert!(rig.find("e/b").await.is_some() && rig.find("e/a").await.is_none());
}

/// A name that was looked up while the removal of its handle's earlier file was in flight is looked
/// up again.
#[tokio::test]
async fn a_name_found_while_its_handle_went_over_is_looked_up_again() {
    let rig = rig().await;
    let foreigner = rig.foreigner().await;
    rig.put("t", b"old").await;
    let old = rig.find("t").await.unwrap();
    let handle = rig.client.handle(old).wait().await.unwrap();
    rig.server.hold_answers(Some("remove"));
    let finding = async {
        while rig.server.getattr(&root(), &handle).await.is_ok() {
            tokio::task::yield_now().await;
        }
        foreigner.put("g", b"somebody else's").await;
        rig.find("g").await;
        rig.server.hold_answers(None);
    };
    let (gone, ()) = tokio::join!(rig.remove("t"), finding);
    gone.unwrap();
    assert_eq!(rig.client.open(&root(), old, READ).wait().await.err(), Some(Error::Stale));
    assert_ne!(rig.find("g").await.unwrap(), old);
    assert_eq!(rig.cat("g").await, b"somebody else's");
}
