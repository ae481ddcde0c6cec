//! Bytes and attributes that the server was asked to change, without an answer: what becomes of the
//! names of such an object afterwards is not stopped by a version that the server made for us.

use larder_vfs::{Error, Stability, Trouble};

use super::away::{LICENCES, Pair};
use super::*;

/// What the server was asked for.
#[derive(Clone, Copy, Debug)]
enum Asked {
    Write,
    Cut,
    SetMode,
}

/// What is done here afterwards, without the server.
#[derive(Clone, Copy, Debug)]
enum Then {
    Remove,
    /// Another file gets its name.
    Replace,
    /// It gets another name, and another file then gets that.
    MoveAndReplace,
    SetMode,
}

const ASKED: [Asked; 3] = [Asked::Write, Asked::Cut, Asked::SetMode];
const THEN: [Then; 4] = [Then::Remove, Then::Replace, Then::MoveAndReplace, Then::SetMode];

async fn ask(pair: &Pair, asked: Asked, file: &Handle) -> Result<()> {
    let (remote, user) = (pair.rig.remote(), user());
    match asked {
        Asked::Write => {
            let text = "written".into();
            remote.write(&user, file, None, 0, text, Stability::FileSync).await.map(drop)
        }
        Asked::Cut => {
            let set = SetAttr { size: Some(0), ..SetAttr::default() };
            remote.setattr(&user, file, set, None).await.map(drop)
        }
        Asked::SetMode => remote.setattr(&user, file, mode(0o640), None).await.map(drop),
    }
}

async fn make(pair: &Pair, name: &str) {
    pair.rig.made(&pair.top, name, New::FileExclusive).await.unwrap();
}

async fn rename(pair: &Pair, from: &str, to: &str) {
    let (from, to) = ((&pair.top, OsStr::new(from)), (&pair.top, OsStr::new(to)));
    pair.rig.remote().rename(&user(), from, to).await.unwrap();
}

async fn then(pair: &Pair, then: Then, file: &Handle) {
    match then {
        Then::Remove => pair.rig.remove(&pair.top, "file", Removal::File).await.unwrap(),
        Then::Replace => {
            make(pair, "new").await;
            rename(pair, "new", "file").await;
        }
        Then::MoveAndReplace => {
            rename(pair, "file", "moved").await;
            make(pair, "file").await;
            rename(pair, "file", "moved").await;
            make(pair, "file").await;
        }
        Then::SetMode => {
            let set = pair.rig.deferring().set_here(&user(), file, &mode(0o600), None);
            set.unwrap().unwrap();
        }
    }
}

/// A file of the server's with some bytes.
async fn file(pair: &Pair) -> Handle {
    let (other, root) = (pair.rig.server.another_client(), Cred::root());
    let set = SetAttr { uid: Some(1000), gid: Some(1000), ..mode(0o644) };
    let made = other.make(&root, &pair.top, "file".as_ref(), New::FileExclusive, set).await;
    let file = made.unwrap().found.handle;
    other.write(&root, &file, None, 0, "first".into(), Stability::FileSync).await.unwrap();
    file
}

/// The server did it or did not, the process dies or does not: the names are as they were made
/// here, and nothing is kept twice or given up.
#[tokio::test]
async fn what_the_server_may_have_written_for_us_is_no_other_clients_change() {
    for case in 0..ASKED.len() * THEN.len() * 16 {
        let (asked, next) = (ASKED[case % 3], THEN[case / 3 % 4]);
        let [is_done, dies_before, dies_after, sole] =
            [0, 1, 2, 3].map(|bit| (case / 12) >> bit & 1 == 1);
        let what =
            format!("{asked:?} {next:?}, done: {is_done}, {dies_before} {dies_after} {sole}");
        let mut pair = Pair::new(LICENCES[usize::from(sole)], 1).await;
        let file = file(&pair).await;
        let held = pair.rig.remote().getattr(&user(), &file).await.unwrap();
        pair.rig.server.trouble_after(
            0,
            if is_done { Trouble::Unanswered } else { Trouble::Refused(Error::TimedOut) },
        );
        assert_eq!(ask(&pair, asked, &file).await, Err(Error::TimedOut), "{what}");
        pair.leave();
        if dies_before {
            pair = pair.die();
        }
        pair.has_held(&file, held);
        then(&pair, next, &file).await;
        if dies_after {
            pair = pair.die();
            pair.has_held(&file, held);
        }
        pair.rig.server.reconnect();
        pair.rig.names.shared().state().forget_known();
        assert_eq!(pair.rig.deferring().replay(None).await, Ok(()), "{what}");
        pair.rig.is_quiet(&what);
        let left = tree(&*pair.rig.server).await;
        let names: Vec<_> = left.keys().map(String::as_str).collect();
        let expected: &[&str] = match next {
            Then::Remove => &[],
            Then::Replace | Then::SetMode => &["/file"],
            Then::MoveAndReplace => &["/file", "/moved"],
        };
        assert_eq!(names, expected, "{what}");
        if let Then::SetMode = next {
            assert_eq!(left["/file"].mode, 0o600, "{what}");
        }
        assert_eq!(pair.rig.names.shared().state().journal().doubts().all().count(), 0, "{what}");
    }
}

/// A request that was answered leaves no doubt, and a size that none of ours can have led to is
/// another client's.
#[tokio::test]
async fn what_we_did_not_ask_for_is_another_clients_change() {
    let pair = Pair::new(LICENCES[0], 1).await;
    let file = file(&pair).await;
    for asked in ASKED {
        ask(&pair, asked, &file).await.unwrap();
    }
    let doubts = || pair.rig.names.shared().state().journal().doubts().all().count();
    assert_eq!(doubts(), 0);
    let held = pair.rig.remote().getattr(&user(), &file).await.unwrap();
    pair.rig.server.trouble_after(0, Trouble::Unanswered);
    ask(&pair, Asked::Write, &file).await.unwrap_err();
    assert_eq!(doubts(), 1);
    pair.has_held(&file, held);
    pair.leave();
    then(&pair, Then::Remove, &file).await;
    let (other, root) = (pair.rig.server.another_client(), Cred::root());
    let far = other.write(&root, &file, None, 5 << 20, "theirs".into(), Stability::FileSync);
    far.await.unwrap();
    pair.rig.server.reconnect();
    pair.rig.names.shared().state().forget_known();
    pair.rig.deferring().replay(None).await.unwrap();
    assert_eq!(tree(&other).await.keys().collect::<Vec<_>>(), ["/file"]);
    let stays = (ConflictKind::Removed, "file".to_owned(), "file".to_owned());
    assert_eq!((pair.rig.conflicts(), pair.rig.deferring().deferred().len()), (vec![stays], 0));
}

/// That a request is in flight is on record: the process may die before there is an answer.
#[tokio::test]
async fn what_a_process_asked_for_as_it_died_is_on_record() {
    let pair = Pair::new(LICENCES[0], 1).await;
    let file = file(&pair).await;
    pair.rig.server.hold(Some("write"));
    let mut asking = Box::pin(ask(&pair, Asked::Write, &file));
    assert!(futures_are_pending(&mut asking));
    let doubts = || pair.rig.names.shared().state().journal().doubts().all().count();
    assert_eq!(doubts(), 1);
    drop(asking);
    pair.rig.server.hold(None);
    let pair = pair.die();
    let doubts = pair.rig.names.shared().state().journal().doubts().all().count();
    assert_eq!(doubts, 1);
}

fn futures_are_pending<T>(future: &mut std::pin::Pin<Box<impl Future<Output = T>>>) -> bool {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    future.as_mut().poll(&mut context).is_pending()
}

/// The server falls silent at any two requests while it is asked to set what was set without it:
/// that is what callers are told.
#[tokio::test]
async fn silence_while_attributes_are_set_is_told_as_silence() {
    for (first, second) in (0..6).flat_map(|first| (0..6).map(move |second| (first, second))) {
        let pair = Pair::new(LICENCES[0], 1).await;
        let file = file(&pair).await;
        let held = pair.rig.remote().getattr(&user(), &file).await.unwrap();
        pair.leave();
        pair.has_held(&file, held);
        then(&pair, Then::SetMode, &file).await;
        pair.rig.server.reconnect();
        for silent in [first, second] {
            pair.rig.server.trouble_after(silent, Trouble::Unanswered);
            let told = pair.rig.deferring().replay(None).await;
            assert!(matches!(told, Ok(()) | Err(Error::TimedOut)), "{first} {second}: {told:?}");
        }
        pair.rig.server.trouble_after(u64::MAX, Trouble::Unanswered);
        assert_eq!(pair.rig.deferring().replay(None).await, Ok(()), "{first} {second}");
        pair.rig.is_quiet(&format!("{first} {second}"));
        assert_eq!(tree(&*pair.rig.server).await["/file"].mode, 0o600, "{first} {second}");
    }
}

/// The server dies while it makes a file for us, and leaves it without its times: where no other
/// client makes names it is ours. A file that is older, that is written, or of somebody else's is
/// not, nor is any if our attempts were answered.
#[tokio::test]
async fn a_file_that_a_dying_server_has_half_made_is_ours() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum There {
        HalfMade,
        Older,
        Written,
        OfAnother,
    }
    use There::*;
    for (is_asked, dies, there) in [
        (true, false, HalfMade),
        (true, true, HalfMade),
        (false, false, HalfMade),
        (true, false, Older),
        (true, false, Written),
        (true, false, OfAnother),
    ] {
        let what = format!("asked before: {is_asked}, {dies}, {there:?}");
        let mut rig = Rig::new().await;
        let (top, other) = (rig.top().await, rig.server.another_client());
        let user = if there == OfAnother { Cred::new(1001, 1000, &[]) } else { user() };
        let make = async || {
            let new = New::Node(Kind::File, Default::default());
            other.make(&user, &top, "file".as_ref(), new, mode(0o600)).await.unwrap().found.handle
        };
        let ours = rig.made(&top, "file", New::FileExclusive).await.unwrap();
        if is_asked {
            rig.server.trouble_after(0, Trouble::Refused(Error::TimedOut));
            assert!(rig.deferring().replay(None).await.is_err(), "{what}");
        }
        let file = make().await;
        match there {
            Written => {
                let text = "theirs".into();
                other.write(&user, &file, None, 0, text, Stability::FileSync).await.unwrap();
            }
            Older => {
                let long_ago = Some(larder_vfs::SetTime::To(Default::default()));
                let set = SetAttr { atime: long_ago, mtime: long_ago, ..SetAttr::default() };
                other.setattr(&user, &file, set, None).await.unwrap();
            }
            HalfMade | OfAnother => {}
        }
        if dies {
            rig = rig.crash(None);
        }
        rig.deferring().replay(None).await.unwrap();
        let is_ours = is_asked && there == HalfMade;
        assert_eq!(rig.conflicts().is_empty(), is_ours, "{what}");
        if is_ours {
            let made = other.getattr(&user, &file).await.unwrap();
            let wanted = (ours.attr.mode, ours.attr.mtime, ours.attr.atime);
            assert_eq!((made.mode, made.mtime, made.atime), wanted, "{what}");
        }
    }
}
