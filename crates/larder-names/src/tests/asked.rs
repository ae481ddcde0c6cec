//! Changes that the server was asked for without an answer, and that this machine then answers in
//! its place. Whether the server has made them, and whatever is done to these names afterwards, it
//! has in the end what was acknowledged, and nothing twice.

use larder_vfs::{Error, SetTime, Time};

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
