//! Cases on attributes: which operations change them, setting them, distinguishing versions.

use std::ffi::OsStr;

use crate::{Attr, Change, Error, New, Removal, SetAttr, SetTime, Time};

use super::bench::{Bench, Outcome, holds, mode, refused, same, works};

super::table! {
    answers_agree_with_getattr;
    set_mode [Modes];
    set_mode_of_a_directory [Modes];
    set_owner_and_group [Chown];
    set_times;
    set_times_in_nanoseconds [Nanoseconds];
    set_times_to_now;
    setting_times_does_not_turn_ctime_back [ChangeTime];
    set_nothing;
    guard_that_holds [Guard];
    guard_that_does_not_hold [Guard];
    data_changes_the_version [DistinctTimes];
    mode_changes_the_version [Modes, DistinctTimes];
    names_change_the_directory [DistinctTimes];
    reading_does_not_change_the_version;
    own_changes_follow_each_other [Before, DistinctTimes];
    foreign_changes_do_not_follow [Before, DistinctTimes];
    directory_changes_follow [Before, DistinctTimes];
    space;
    limits_make_sense;
}

/// Attributes that came with a reply must be those that getattr returns.
fn agrees(what: &str, brought: Option<Attr>, asked: Attr) -> Outcome {
    let Some(brought) = brought else { return Ok(()) };
    same(what, Attr { atime: asked.atime, ..brought }, asked)
}

async fn answers_agree_with_getattr(bench: Bench) -> Outcome {
    let (owner, remote) = (&bench.owner, &bench.remote);
    let file = bench.file("a", b"hello").await?;
    let written = bench.put(&file, 1, b"i").await?;
    agrees("write", written.after, bench.attr(&file).await?)?;
    let read = works("read", remote.read(owner, &file, None, 0, 9).await)?;
    agrees("read", read.attr, bench.attr(&file).await?)?;
    let found = bench.find(&bench.dir, "a").await?.ok_or("not found")?;
    agrees("lookup", Some(found.attr), bench.attr(&file).await?)?;
    let set = bench.set(&file, SetAttr { size: Some(2), ..SetAttr::default() }).await?;
    agrees("setattr", set.after, bench.attr(&file).await?)?;
    let made = remote.make(owner, &bench.dir, OsStr::new("b"), New::File, mode(0o600)).await;
    let made = works("make", made)?;
    agrees("make", Some(made.found.attr), bench.attr(&made.found.handle).await?)?;
    agrees("its directory", made.dir.after, bench.attr(&bench.dir).await?)?;
    let removed = works("remove", bench.remove(&bench.dir, "b", Removal::File).await)?;
    agrees("remove", removed.after, bench.attr(&bench.dir).await?)?;
    let committed = works("commit", remote.commit(owner, &file, None, 0..0).await)?;
    agrees("commit", committed.change.after, bench.attr(&file).await?)
}

async fn set_mode(bench: Bench) -> Outcome {
    let file = bench.file("a", b"x").await?;
    for bits in [0o600, 0o7777, 0o000, 0o4755, 0o640] {
        bench.set(&file, mode(bits)).await?;
        same("mode", bench.attr(&file).await?.mode, bits)?;
    }
    Ok(())
}

async fn set_mode_of_a_directory(bench: Bench) -> Outcome {
    let inner = bench.directory("d").await?;
    for bits in [0o700, 0o1777, 0o2755] {
        bench.set(&inner, mode(bits)).await?;
        same("mode", bench.attr(&inner).await?.mode, bits)?;
    }
    Ok(())
}

async fn set_owner_and_group(bench: Bench) -> Outcome {
    let file = bench.file("a", b"x").await?;
    bench.set(&file, SetAttr { uid: Some(1234), ..SetAttr::default() }).await?;
    bench.set(&file, SetAttr { gid: Some(4321), ..SetAttr::default() }).await?;
    let attr = bench.attr(&file).await?;
    same("owner and group", (attr.uid, attr.gid), (1234, 4321))
}

async fn times(bench: &Bench, atime: Time, mtime: Time) -> Outcome {
    let file = bench.file("a", b"x").await?;
    let set = SetAttr {
        atime: Some(SetTime::To(atime)),
        mtime: Some(SetTime::To(mtime)),
        ..SetAttr::default()
    };
    bench.set(&file, set).await?;
    let attr = bench.attr(&file).await?;
    same("atime", attr.atime, atime)?;
    same("mtime", attr.mtime, mtime)
}

async fn setting_times_does_not_turn_ctime_back(bench: Bench) -> Outcome {
    let file = bench.file("a", b"x").await?;
    let before = bench.attr(&file).await?;
    let long_ago = Some(SetTime::To(Time { sec: 1_000_000_000, nsec: 0 }));
    bench.set(&file, SetAttr { atime: long_ago, mtime: long_ago, ..SetAttr::default() }).await?;
    holds("ctime does not go back", bench.attr(&file).await?.ctime >= before.ctime)
}

async fn set_times(bench: Bench) -> Outcome {
    let seconds = |sec| Time { sec, nsec: 0 };
    times(&bench, seconds(1_000_000_000), seconds(1_234_567_890)).await
}

async fn set_times_in_nanoseconds(bench: Bench) -> Outcome {
    let delta = bench.remote.limits().time_delta_ns.max(1) as u32;
    let nsec = |wanted: u32| wanted / delta * delta;
    let atime = Time { sec: 1_000_000_000, nsec: nsec(999_999_999) };
    times(&bench, atime, Time { sec: 1_234_567_890, nsec: nsec(123_456_789) }).await
}

async fn set_times_to_now(bench: Bench) -> Outcome {
    let file = bench.file("a", b"x").await?;
    let long_ago = SetTime::To(Time { sec: 1, nsec: 0 });
    let both = |time| SetAttr { atime: Some(time), mtime: Some(time), ..SetAttr::default() };
    bench.set(&file, both(long_ago)).await?;
    bench.set(&file, both(SetTime::ServerNow)).await?;
    let attr = bench.attr(&file).await?;
    holds("atime is new", attr.atime.sec > 1)?;
    holds("mtime is new", attr.mtime.sec > 1)
}

async fn set_nothing(bench: Bench) -> Outcome {
    let file = bench.file("a", b"x").await?;
    let before = bench.attr(&file).await?;
    bench.set(&file, SetAttr::default()).await?;
    let after = bench.attr(&file).await?;
    same(
        "all but times",
        (after.mode, after.size, after.uid),
        (before.mode, before.size, before.uid),
    )
}

async fn guard_that_holds(bench: Bench) -> Outcome {
    let file = bench.file("a", b"x").await?;
    let guard = Some(bench.attr(&file).await?.ctime);
    let set = bench.remote.setattr(&bench.owner, &file, mode(0o600), guard).await;
    works("setattr", set).map(drop)
}

async fn guard_that_does_not_hold(bench: Bench) -> Outcome {
    let file = bench.file("a", b"x").await?;
    let before = bench.attr(&file).await?;
    let guard = Some(Time { sec: before.ctime.sec - 1, nsec: 0 });
    let set = bench.remote.setattr(&bench.owner, &file, mode(0o600), guard).await;
    refused("setattr", set, &[Error::TryAgain])?;
    same("mode", bench.attr(&file).await?.mode, before.mode)
}

async fn data_changes_the_version(bench: Bench) -> Outcome {
    let file = bench.file("a", b"x").await?;
    let first = bench.attr(&file).await?.validator();
    bench.put(&file, 0, b"y").await?;
    let second = bench.attr(&file).await?.validator();
    holds("a write makes a new version", !first.same(&second))?;
    bench.set(&file, SetAttr { size: Some(0), ..SetAttr::default() }).await?;
    holds("so does a truncation", !second.same(&bench.attr(&file).await?.validator()))
}

async fn mode_changes_the_version(bench: Bench) -> Outcome {
    let file = bench.file("a", b"x").await?;
    let before = bench.attr(&file).await?;
    bench.set(&file, mode(0o600)).await?;
    let after = bench.attr(&file).await?;
    holds("a new mode makes a new version", !before.validator().same(&after.validator()))?;
    same("mtime", after.mtime, before.mtime)
}

async fn names_change_the_directory(bench: Bench) -> Outcome {
    let mut version = bench.attr(&bench.dir).await?.validator();
    for step in ["make", "rename", "remove"] {
        let done = match step {
            "make" => bench.make("a", New::File).await.map(|_| ()),
            "rename" => {
                works(step, bench.rename((&bench.dir, "a"), (&bench.dir, "b")).await).map(|_| ())
            }
            _ => works(step, bench.remove(&bench.dir, "b", Removal::File).await).map(|_| ()),
        };
        done?;
        let next = bench.attr(&bench.dir).await?.validator();
        holds(&format!("{step} makes a new version"), !version.same(&next))?;
        version = next;
    }
    Ok(())
}

async fn reading_does_not_change_the_version(bench: Bench) -> Outcome {
    let file = bench.file("a", b"x").await?;
    let before = bench.attr(&file).await?;
    bench.reads(&file, 0, 9, b"x", true).await?;
    bench.list(&bench.dir, 4096).await?;
    let after = bench.attr(&file).await?;
    holds("the same version", before.validator().same(&after.validator()))
}

/// A change must follow the version `held`, and return the next one.
fn follows(what: &str, change: Change, held: &mut Attr) -> Outcome {
    holds(&format!("{what}: nobody else was there"), change.follows(&held.validator()))?;
    *held = change.after.ok_or_else(|| format!("{what}: no attributes"))?;
    Ok(())
}

async fn own_changes_follow_each_other(bench: Bench) -> Outcome {
    let file = bench.file("a", b"x").await?;
    let mut held = bench.attr(&file).await?;
    follows("write", bench.put(&file, 1, b"y").await?, &mut held)?;
    follows("setattr", bench.set(&file, mode(0o600)).await?, &mut held)?;
    follows("write", bench.put(&file, 2, b"z").await?, &mut held)
}

async fn foreign_changes_do_not_follow(bench: Bench) -> Outcome {
    let file = bench.file("a", b"x").await?;
    let held = bench.attr(&file).await?.validator();
    bench.put(&file, 0, b"y").await?;
    let change = bench.put(&file, 0, b"z").await?;
    holds("somebody was there", !change.follows(&held))
}

async fn directory_changes_follow(bench: Bench) -> Outcome {
    let mut held = bench.attr(&bench.dir).await?;
    let (owner, dir) = (&bench.owner, &bench.dir);
    let made = bench.remote.make(owner, dir, OsStr::new("a"), New::File, mode(0o600)).await;
    follows("make", works("make", made)?.dir, &mut held)?;
    let renamed = works("rename", bench.rename((dir, "a"), (dir, "b")).await)?;
    follows("rename", renamed.0, &mut held)?;
    let removed = works("remove", bench.remove(dir, "b", Removal::File).await)?;
    follows("remove", removed, &mut held)
}

async fn space(bench: Bench) -> Outcome {
    let stat = works("statfs", bench.remote.statfs(&bench.owner, &bench.dir).await)?;
    holds("there is some", stat.bytes > 0)?;
    holds("free is within total", stat.bytes_free <= stat.bytes)?;
    holds("available is within free", stat.bytes_available <= stat.bytes_free)
}

async fn limits_make_sense(bench: Bench) -> Outcome {
    let limits = bench.remote.limits();
    holds("reads", limits.read_max >= 512)?;
    holds("writes", limits.write_max >= 512)?;
    holds("listings", limits.readdir_preferred >= 512)?;
    holds("names", limits.name_max >= 14)
}
