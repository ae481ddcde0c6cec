//! Claims: of several machines that have changed a file without the server, one writes over the
//! version below, and nobody writes over what another one wrote.

use std::collections::BTreeSet;

use larder_vfs::{Attr, Error, Stability, Time, Trouble, Validator};

use super::away::{LICENCES, Pair};
use super::*;
use crate::setting::{Next, Setting, There};

/// What the server's file is by the last request that changed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Version {
    Below,
    Claimed(usize),
    Written(usize),
}

/// How far a machine is with its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Bytes {
    Kept,
    /// They are on record as being sent: nothing is asked any more.
    Sending,
    Sent,
    Aside,
}

/// What the process of a machine waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Doing {
    Nothing,
    /// It has an answer to its question.
    Told(Version),
    /// It has sent this; with the answer, whether it was done.
    Asked(Request, Option<bool>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Request {
    Claim,
    Write,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Machine {
    bytes: Bytes,
    claim: Option<Setting>,
    doing: Doing,
    deaths: u32,
}

/// Two machines with bytes for one file, and the server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct World {
    version: Version,
    machines: [Machine; 2],
    /// Requests without a caller that are on their way.
    left: Vec<(usize, Request)>,
    /// Somebody's bytes went over another one's.
    is_lost: bool,
    claims: bool,
}

const DEATHS_MAX: u32 = 2;
const LEFT_MAX: usize = 3;

impl World {
    fn carry_out(&mut self, machine: usize, request: Request) -> bool {
        match request {
            Request::Claim if self.version != Version::Below => return false,
            Request::Claim => self.version = Version::Claimed(machine),
            Request::Write => {
                self.is_lost |= self.version == Version::Written(1 - machine);
                self.version = Version::Written(machine);
            }
        }
        true
    }

    /// A process draws its conclusions, as [`crate::claim`] and the client do.
    fn concludes(&self, at: usize, told: Version) -> Machine {
        let machine = self.machines[at];
        let there =
            There { is_below: told == Version::Below, is_made: told == Version::Claimed(at) };
        let with = |bytes, doing| Machine { bytes, doing, ..machine };
        let sends = if self.claims {
            Machine { claim: Some(Setting::Asked), ..with(Bytes::Kept, asks(Request::Claim)) }
        } else {
            with(Bytes::Sending, Doing::Nothing)
        };
        match machine.claim {
            None if there.is_below => sends,
            Some(Setting::Done) if there.is_made => with(Bytes::Sending, Doing::Nothing),
            Some(setting @ Setting::Asked) => match setting.next(there) {
                Next::Ask => sends,
                Next::Conclude(Setting::Done) => {
                    Machine { claim: Some(Setting::Done), ..with(Bytes::Kept, Doing::Nothing) }
                }
                Next::Conclude(_) => Machine { claim: None, ..with(Bytes::Aside, Doing::Nothing) },
            },
            _ => with(Bytes::Aside, Doing::Nothing),
        }
    }

    fn with(&self, at: usize, machine: Machine) -> World {
        let mut next = self.clone();
        next.machines[at] = machine;
        next
    }

    /// What a machine may come to next, by itself or by the server.
    fn nexts_of(&self, at: usize) -> Vec<World> {
        let (mut all, machine) = (Vec::new(), self.machines[at]);
        let does = |doing| Machine { doing, ..machine };
        match (machine.bytes, machine.doing) {
            (Bytes::Kept, Doing::Nothing) => {
                all.push(self.with(at, does(Doing::Told(self.version))));
            }
            (Bytes::Kept, Doing::Told(version)) => {
                all.push(self.with(at, self.concludes(at, version)));
            }
            (Bytes::Sending, Doing::Nothing) => all.push(self.with(at, does(asks(Request::Write)))),
            (_, Doing::Asked(request, None)) => {
                let mut next = self.clone();
                let is_done = next.carry_out(at, request);
                all.push(next.with(at, does(Doing::Asked(request, Some(is_done)))));
                let mut lost = self.with(at, does(Doing::Nothing));
                lost.left.push((at, request));
                all.push(lost);
            }
            (_, Doing::Asked(request, Some(is_done))) => {
                let after = does(Doing::Nothing);
                let (setting, sending) = (Some(Setting::Done), Bytes::Sending);
                all.push(self.with(at, after));
                all.push(match (request, is_done) {
                    (Request::Claim, true) => {
                        self.with(at, Machine { claim: setting, bytes: sending, ..after })
                    }
                    (Request::Claim, false) => self.with(at, after),
                    (Request::Write, _) => self.with(at, Machine { bytes: Bytes::Sent, ..after }),
                });
            }
            _ => {}
        }
        if machine.deaths < DEATHS_MAX && machine.doing != Doing::Nothing {
            let deaths = machine.deaths + 1;
            let mut next = self.with(at, Machine { deaths, ..does(Doing::Nothing) });
            if let Doing::Asked(request, None) = machine.doing {
                next.left.push((at, request));
            }
            all.push(next);
        }
        all
    }

    fn nexts(&self) -> Vec<World> {
        let mut all = [self.nexts_of(0), self.nexts_of(1)].concat();
        for at in 0..self.left.len() {
            let mut next = self.clone();
            let (machine, request) = next.left.remove(at);
            all.push(next.clone());
            next.carry_out(machine, request);
            all.push(next);
        }
        all.iter_mut().for_each(|world| world.left.sort());
        all
    }
}

fn asks(request: Request) -> Doing {
    Doing::Asked(request, None)
}

/// All that two machines can come to, over lost answers, deaths, and requests that are carried out
/// late.
fn all_worlds(claims: bool) -> BTreeSet<World> {
    let machine = Machine { bytes: Bytes::Kept, claim: None, doing: Doing::Nothing, deaths: 0 };
    let machines = [machine; 2];
    let begin = World { version: Version::Below, machines, left: vec![], is_lost: false, claims };
    let (mut seen, mut left) = (BTreeSet::new(), vec![begin]);
    while let Some(world) = left.pop() {
        if world.left.len() <= LEFT_MAX && seen.insert(world.clone()) {
            left.extend(world.nexts());
        }
    }
    seen
}

/// Over all sequences: no machine writes over the other one's bytes, and not both give way.
#[test]
fn of_two_machines_that_claim_a_file_one_writes_it() {
    let worlds = all_worlds(true);
    let bytes = |world: &World| world.machines.map(|machine| machine.bytes);
    for world in &worlds {
        assert!(!world.is_lost, "{world:?}");
        let written = world.machines.iter().filter(|machine| machine.bytes == Bytes::Aside);
        assert!(written.count() < 2, "{world:?}");
    }
    let ends = [[Bytes::Sent, Bytes::Aside], [Bytes::Aside, Bytes::Sent]];
    assert!(ends.iter().all(|end| worlds.iter().any(|world| bytes(world) == *end)));
    let is_both = |world: &World| bytes(world) == [Bytes::Sent; 2];
    assert!(!worlds.iter().any(is_both) && worlds.len() > 1000, "{}", worlds.len());
    // That it shows what claims are for.
    assert!(all_worlds(false).iter().any(|world| world.is_lost));
}

/// A file of the server's with some bytes, which a user of this machine owns.
async fn file(pair: &Pair) -> (Handle, Attr) {
    let (other, root) = (pair.rig.server.another_client(), Cred::root());
    let set = SetAttr { uid: Some(1000), ..mode(0o644) };
    let made = other.make(&root, &pair.top, "file".as_ref(), New::FileExclusive, set).await;
    let file = made.unwrap().found.handle;
    other.write(&root, &file, None, 0, "first".into(), Stability::FileSync).await.unwrap();
    let shown = pair.rig.remote().getattr(&user(), &file).await.unwrap();
    pair.rig.server.reset_calls();
    (file, shown)
}

async fn version(pair: &Pair, file: &Handle) -> Validator {
    pair.rig.remote().getattr(&user(), file).await.unwrap().validator()
}

async fn other_writes(pair: &Pair, file: &Handle) -> Attr {
    let (other, root) = (pair.rig.server.another_client(), Cred::root());
    other.write(&root, file, None, 0, "their".into(), Stability::FileSync).await.unwrap();
    other.getattr(&root, file).await.unwrap()
}

/// A claim costs a call, is not seen here, and is made once, whatever process asks for it.
#[tokio::test]
async fn a_claim_costs_a_call_and_does_not_show() {
    for is_lost in [false, true] {
        let pair = Pair::new(LICENCES[0], 10).await;
        let (file, shown) = file(&pair).await;
        if is_lost {
            pair.rig.server.trouble_after(0, Trouble::Unanswered);
        }
        let claimed = pair.rig.deferring().claim(&user(), &file, &shown).await;
        assert_eq!(claimed.is_err(), is_lost);
        let calls = pair.rig.server.calls("setattr");
        assert_eq!((calls, pair.rig.server.calls_total()), (1, 1));
        let there = pair.rig.server.getattr(&user(), &file).await.unwrap().validator();
        assert!(!there.same(&shown.validator()) && there.mtime != shown.mtime);
        let pair = pair.die();
        assert_eq!(pair.rig.deferring().replay(Some(&file)).await, Ok(()));
        assert_eq!(version(&pair, &file).await, shown.validator());
        pair.rig.deferring().claim(&user(), &file, &shown).await.unwrap();
        assert_eq!(pair.rig.server.calls("setattr"), calls);
        let (remote, text) = (pair.rig.remote(), "ours".into());
        let written = remote.write(&user(), &file, None, 0, text, Stability::FileSync).await;
        let change = written.unwrap().change;
        assert!(change.follows(&shown.validator()), "{change:?} {shown:?}");
        assert_ne!(version(&pair, &file).await, shown.validator());
        pair.rig.is_quiet("nobody else wrote");
    }
}

/// Another client's change comes before a claim, or after one that was not answered: the file stays
/// as that client left it, and is seen so here.
#[tokio::test]
async fn what_another_client_wrote_is_not_claimed() {
    for (is_lost, is_dead) in [(false, false), (true, false), (true, true)] {
        let pair = Pair::new(LICENCES[0], 11).await;
        let (file, shown) = file(&pair).await;
        if is_lost {
            pair.rig.server.trouble_after(0, Trouble::Unanswered);
            pair.rig.deferring().claim(&user(), &file, &shown).await.unwrap_err();
        }
        let theirs = other_writes(&pair, &file).await;
        let pair = if is_dead { pair.die() } else { pair };
        match is_lost {
            true => assert_eq!(pair.rig.deferring().replay(Some(&file)).await, Ok(())),
            false => {
                let claimed = pair.rig.deferring().claim(&user(), &file, &shown).await;
                assert_eq!(claimed, Err(Error::TryAgain));
            }
        }
        assert_eq!(pair.rig.server.getattr(&user(), &file).await, Ok(theirs));
        assert_eq!(version(&pair, &file).await, theirs.validator());
        pair.rig.is_quiet("no caller has set anything");
    }
}

/// A new mode or name moves the change time, by which the server guards: the bytes are those below,
/// and the file is claimed all the same.
#[tokio::test]
async fn a_file_is_claimed_over_another_mode() {
    let pair = Pair::new(LICENCES[0], 12).await;
    let at = |sec: i64| pair.rig.server.set_time(Time { sec: 2_000_000_000 + sec, nsec: 0 });
    at(0);
    let (file, shown) = file(&pair).await;
    at(10);
    let (other, root) = (pair.rig.server.another_client(), Cred::root());
    other.setattr(&root, &file, mode(0o600), None).await.unwrap();
    pair.rig.deferring().claim(&user(), &file, &shown).await.unwrap();
    let there = pair.rig.server.getattr(&user(), &file).await.unwrap();
    assert!(there.mtime != shown.mtime && there.mode == 0o600, "{there:?}");
    assert_eq!(version(&pair, &file).await.mtime, shown.mtime);
}

/// Who may not claim a file, and who need not, asks for nothing.
#[tokio::test]
async fn nobody_claims_a_file_of_others_or_on_a_mount_that_is_the_only_writer() {
    for (licence, uid) in [(LICENCES[0], 1001), (LICENCES[1], 1000)] {
        let pair = Pair::new(licence, 13).await;
        let (file, shown) = file(&pair).await;
        let cred = Cred::new(uid, 1000, &[]);
        assert_eq!(pair.rig.deferring().claim(&cred, &file, &shown).await, Ok(()));
        assert_eq!(pair.rig.server.calls_total(), 0);
    }
}

/// A server that refuses a claim gets the bytes without one; one that leaves attributes out of its
/// answers is asked for them.
#[tokio::test]
async fn a_refused_claim_leaves_nothing() {
    let pair = Pair::new(LICENCES[0], 14).await;
    let (file, shown) = file(&pair).await;
    pair.rig.server.trouble_after(0, Trouble::Refused(Error::NotPermitted));
    assert_eq!(pair.rig.deferring().claim(&user(), &file, &shown).await, Ok(()));
    assert_eq!(version(&pair, &file).await, shown.validator());
    assert!(pair.rig.names.shared().state().journal().all_altered().next().is_none());
    pair.rig.server.set_terse(true);
    assert_eq!(pair.rig.deferring().claim(&user(), &file, &shown).await, Ok(()));
    assert_eq!(version(&pair, &file).await, shown.validator());
    let there = pair.rig.server.getattr(&user(), &file).await.unwrap();
    assert_ne!(there.mtime, shown.mtime);
}
