//! Changes that the server was asked for without an answer, and that this machine then answers in
//! its place. Whether the server has made them, and whatever is done to these names afterwards, it
//! has in the end what was acknowledged, and nothing twice.

use larder_vfs::{Error, SetTime, Stability, Time, Trouble};

use super::away::{LICENCES, Pair};
use super::*;

/// A change of names in one directory.
#[derive(Clone, Copy, Debug)]
enum Step {
    Make(&'static str),
    Rename(&'static str, &'static str),
    Remove(&'static str),
    Alter(&'static str),
}
use Step::{Alter, Make, Remove, Rename};

/// What may have reached the server.
const ASKED: [Step; 3] = [Make("a"), Rename("a", "b"), Remove("a")];
const AFTERWARDS: [Step; 10] = [
    Make("a"),
    Make("b"),
    Rename("a", "b"),
    Rename("b", "a"),
    Rename("b", "c"),
    Rename("c", "b"),
    Remove("a"),
    Remove("b"),
    Alter("a"),
    Alter("b"),
];

/// Attributes that no other step sets.
fn set(count: i64) -> SetAttr {
    SetAttr { mtime: Some(SetTime::To(Time { sec: 1000 + count, nsec: 0 })), ..mode(0o644) }
}

async fn do_there(remote: &dyn Remote, cred: &Cred, step: Step, set: SetAttr) -> Result<()> {
    let top = remote.root().await?.handle;
    do_in(remote, &top, cred, step, set).await
}

async fn do_in(
    remote: &dyn Remote,
    top: &Handle,
    cred: &Cred,
    step: Step,
    set: SetAttr,
) -> Result<()> {
    let at = |name: &'static str| (top, OsStr::new(name));
    match step {
        Make(name) => {
            remote.make(cred, top, name.as_ref(), New::FileExclusive, set).await.map(drop)
        }
        Rename(from, to) => remote.rename(cred, at(from), at(to)).await.map(drop),
        Remove(name) => remote.remove(cred, top, name.as_ref(), Removal::File).await.map(drop),
        Alter(name) => {
            let found = remote.lookup(cred, top, name.as_ref()).await?.found;
            let file = found.ok_or(Error::NotFound)?.handle;
            remote.setattr(cred, &file, set, None).await.map(drop)
        }
    }
}

async fn do_here(pair: &Pair, cred: &Cred, step: Step, set: SetAttr) -> Result<()> {
    let Alter(name) = step else {
        return do_in(pair.rig.remote(), &pair.top, cred, step, set).await;
    };
    let (file, _) = pair.find(&pair.top, name).await.ok_or(Error::NotFound)?;
    let answer = pair.rig.deferring().set_here(cred, &file, &set, None);
    answer.expect("it can be answered here").map(drop)
}

#[tokio::test]
async fn what_the_server_may_have_done_for_us_is_no_other_clients_change() {
    let (mut cases, mut refused) = (0, 0);
    for first in ASKED {
        for case in 0..4 * AFTERWARDS.len() * AFTERWARDS.len() {
            let (is_done, replaces) = (case % 2 == 0, case / 2 % 2 == 0);
            let (second, third) = (case / 4 % AFTERWARDS.len(), case / 4 / AFTERWARDS.len());
            let steps = [first, AFTERWARDS[second], AFTERWARDS[third]];
            let what = format!("{steps:?}, done: {is_done}, replaces: {replaces}");
            let pair = Pair::new(LICENCES[(second + third) % 2], 1).await;
            let other = pair.rig.server.another_client();
            let there = [(!matches!(first, Make(_))).then_some("a"), replaces.then_some("b")];
            for (count, name) in (100..).zip(there.into_iter().flatten()) {
                for remote in [&other, &pair.reference] {
                    do_there(remote, &user(), Make(name), set(count)).await.unwrap();
                }
            }
            pair.leave();
            let again = Cred { retried: true, ..user() };
            for (count, step) in (0..).zip(steps) {
                let cred = if count == 0 { &again } else { &user() };
                let done = do_here(&pair, cred, step, set(count)).await;
                if done == Err(Error::TimedOut) && count > 0 {
                    // It needs the server.
                    refused += 1;
                    continue;
                }
                let same = do_there(&pair.reference, &user(), step, set(count)).await;
                assert_eq!(done, same, "{what}: {step:?}");
            }
            if is_done {
                do_there(&other, &user(), first, mode(0o600)).await.unwrap();
            }
            let pair = if case / 4 % 2 == 0 { pair } else { pair.die() };
            pair.rig.server.reconnect();
            pair.rig.names.shared().state().forget_known();
            let replayed = pair.rig.deferring().replay(None).await;
            assert_eq!(replayed, Ok(()), "{what}");
            pair.rig.is_quiet(&what);
            assert_eq!(tree(&*pair.rig.server).await, tree(&pair.reference).await, "{what}");
            assert_eq!(tree(pair.rig.remote()).await, tree(&pair.reference).await, "{what}");
            cases += 1;
        }
    }
    println!("{cases} cases, {refused} steps that need the server");
    assert!(cases > 5 * refused && refused > 0);
}

/// A file of the server's with some bytes, which is emptied here while the server is away; and what
/// the server is asked to set.
async fn emptied(pair: &Pair) -> (Handle, SetAttr) {
    let (other, root) = (pair.rig.server.another_client(), Cred::root());
    let set = SetAttr { uid: Some(1000), ..mode(0o644) };
    let made = other.make(&root, &pair.top, "file".as_ref(), New::FileExclusive, set).await;
    let file = made.unwrap().found.handle;
    other.write(&root, &file, None, 0, "first".into(), Stability::FileSync).await.unwrap();
    pair.leave();
    let empty = SetAttr { size: Some(0), ..SetAttr::default() };
    pair.rig.deferring().set_here(&user(), &file, &empty, None).unwrap().unwrap();
    pair.rig.server.reconnect();
    let set = pair.rig.names.shared().state().journal().all_altered().next().unwrap().set;
    (file, set)
}

async fn write(pair: &Pair, file: &Handle) -> Result<()> {
    let (remote, text) = (pair.rig.remote(), "mine".into());
    remote.write(&user(), file, None, 0, text, Stability::FileSync).await.map(drop)
}

/// The request of a process that died is carried out after the next process has asked which version
/// the server has, and before its own request, which the guard then refuses. What the server has is
/// ours: it is shown as such before that is decided, and is no other client's afterwards.
#[tokio::test]
async fn what_a_dead_process_asked_for_is_not_another_clients_however_late_it_is_done() {
    for is_described in [false, true] {
        let pair = Pair::new(LICENCES[0], 6).await;
        let (file, set) = emptied(&pair).await;
        let shown = pair.rig.remote().getattr(&user(), &file).await.unwrap();
        pair.rig.server.trouble_after(1, Trouble::Refused(Error::TimedOut));
        pair.rig.deferring().replay(Some(&file)).await.unwrap_err();
        let pair = pair.die();
        pair.rig.server.trouble_after(1, Trouble::Refused(Error::TryAgain));
        pair.rig.deferring().replay(Some(&file)).await.unwrap_err();
        assert!(!pair.rig.server.is_trouble_to_come());
        let other = pair.rig.server.another_client();
        other.setattr(&user(), &file, set, None).await.unwrap();
        let found = pair.rig.find(&pair.top, "file").await.unwrap().attr.validator();
        assert!(found.same_data(&shown.validator()), "{found:?} {shown:?}");
        if is_described {
            let told = pair.rig.remote().getattr(&user(), &file).await.unwrap().validator();
            assert!(told.same_data(&shown.validator()), "{told:?} {shown:?}");
        }
        assert_eq!(pair.rig.deferring().replay(Some(&file)).await, Ok(()));
        pair.rig.is_quiet("it is ours");
        write(&pair, &file).await.unwrap();
    }
}

/// Another client has changed a file that was emptied here: the bytes that were to follow do not go
/// over its change.
#[tokio::test]
async fn bytes_do_not_follow_an_emptying_that_is_given_up() {
    let pair = Pair::new(LICENCES[0], 7).await;
    let (file, _) = emptied(&pair).await;
    let (other, root) = (pair.rig.server.another_client(), Cred::root());
    other.write(&root, &file, None, 0, "theirs".into(), Stability::FileSync).await.unwrap();
    assert_eq!(write(&pair, &file).await, Err(Error::Changed));
    let read = other.read(&root, &file, None, 0, 100).await.unwrap();
    assert_eq!(&read.data[..], b"theirs");
    assert_eq!(pair.rig.conflicts().len(), 1);
}

/// The server has set a mode that was set here, and its answer is lost; then another client writes.
/// The file has the mode, but the bytes are that client's all the same.
#[tokio::test]
async fn a_write_after_an_unanswered_change_of_attributes_is_another_clients() {
    let is_dead = [false, true];
    let writes = [("other", 0), ("longer than before", 0), ("same length", 5)];
    for (is_dead, (text, at)) in is_dead.iter().flat_map(|one| writes.map(|write| (*one, write))) {
        let pair = Pair::new(LICENCES[0], 9).await;
        let (other, root) = (pair.rig.server.another_client(), Cred::root());
        let set = SetAttr { uid: Some(1000), ..mode(0o644) };
        let made = other.make(&root, &pair.top, "file".as_ref(), New::FileExclusive, set).await;
        let file = made.unwrap().found.handle;
        other.write(&root, &file, None, 0, "first".into(), Stability::FileSync).await.unwrap();
        pair.leave();
        pair.rig.deferring().set_here(&user(), &file, &mode(0o600), None).unwrap().unwrap();
        pair.rig.server.reconnect();
        let shown = pair.rig.remote().getattr(&user(), &file).await.unwrap();
        pair.rig.server.trouble_after(1, Trouble::Unanswered);
        pair.rig.deferring().replay(Some(&file)).await.unwrap_err();
        other.write(&root, &file, None, at, text.into(), Stability::FileSync).await.unwrap();
        let pair = if is_dead { pair.die() } else { pair };
        assert_eq!(pair.rig.deferring().replay(Some(&file)).await, Ok(()));
        let now = pair.rig.remote().getattr(&user(), &file).await.unwrap();
        let is_same = now.validator().same_data(&shown.validator());
        assert!(!is_same && now.mode == 0o600, "{is_dead} {text}: {shown:?} {now:?}");
        pair.rig.is_quiet("all that was set is there");
    }
}

/// A description that the server made before it set what it was asked for, and that arrives after
/// its answer, is of nobody else's change.
#[tokio::test]
async fn an_older_description_is_no_other_clients_change() {
    let pair = Pair::new(LICENCES[0], 8).await;
    let (file, _) = emptied(&pair).await;
    let before = pair.rig.server.getattr(&user(), &file).await.unwrap();
    let shown = pair.rig.remote().getattr(&user(), &file).await.unwrap();
    assert_eq!(pair.rig.deferring().replay(Some(&file)).await, Ok(()));
    let late = pair.rig.names.shared().show(&file, before);
    let told = (before.size, late.size);
    assert!(late.validator().same_data(&shown.validator()) && told == (5, 0), "{late:?} {shown:?}");
    let now = pair.rig.remote().getattr(&user(), &file).await.unwrap();
    assert!(now.validator().same_data(&shown.validator()), "{now:?}");
}

/// A file that was made here gets another name at the server, by a request of which this process
/// knows nothing: its data is what it was, until another client writes.
#[tokio::test]
async fn a_file_that_was_made_here_has_the_same_data_under_another_name() {
    let rig = Rig::new().await;
    let at = |sec: i64| rig.server.set_time(Time { sec: 2_000_000_000 + sec, nsec: 0 });
    at(0);
    let (top, other, root) = (rig.top().await, rig.server.another_client(), Cred::root());
    let file = rig.made(&top, "file", New::File).await.unwrap().handle;
    rig.deferring().replay(None).await.unwrap();
    let version = async || rig.remote().getattr(&user(), &file).await.unwrap().validator();
    let before = version().await;
    at(10);
    let names = ["file", "moved"].map(OsStr::new);
    other.rename(&root, (&top, names[0]), (&top, names[1])).await.unwrap();
    let moved = version().await;
    assert!(moved.same_data(&before) && moved.ctime != before.ctime, "{before:?} {moved:?}");
    at(20);
    let found = other.lookup(&root, &top, names[1]).await.unwrap().found.unwrap().handle;
    other.write(&root, &found, None, 0, "theirs".into(), Stability::FileSync).await.unwrap();
    assert!(!version().await.same_data(&before));
}
