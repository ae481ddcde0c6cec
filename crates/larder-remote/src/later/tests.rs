//! The model behind a server that is not reached yet.

use super::*;
use larder_io::SimClock;
use larder_vfs::conformance::{Traits, Verdict, cases};
use larder_vfs::{LeaseHandled, MemRemote};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::mpsc;

/// How each next try is to end.
type Ends = mpsc::UnboundedSender<Result<MemRemote, &'static str>>;

/// A server whose tries end as the test says.
fn later(limit: Option<Duration>) -> (Later<MemRemote>, Ends) {
    let (ends, told) = mpsc::unbounded_channel();
    let told = Arc::new(tokio::sync::Mutex::new(told));
    let (remembered, clock) = (Remembered::of(&MemRemote::new()), Arc::new(RealClock));
    let later = Later::begin(remembered, "no answer".to_owned(), limit, clock, move || {
        let told = Arc::clone(&told);
        async move {
            match told.lock().await.recv().await {
                Some(end) => end,
                None => std::future::pending().await,
            }
        }
    });
    (later, ends)
}

async fn until(later: &Later<MemRemote>, is: impl FnMut(&State<MemRemote>) -> bool) {
    let mut state = later.inner.state.subscribe();
    drop(state.wait_for(is).await.unwrap());
}

#[tokio::test]
async fn calls_wait_until_it_is_reached() {
    let (later, ends) = later(None);
    let asking = tokio::spawn({
        let later = later.clone();
        async move { later.root().await }
    });
    assert!(!later.reachable());
    assert_eq!(later.problem().as_deref(), Some("no answer"));
    ends.send(Err("refused")).unwrap();
    until(&later, |state| matches!(state, State::Away(problem) if problem == "refused")).await;
    assert!(!asking.is_finished());
    ends.send(Ok(MemRemote::new())).unwrap();
    asking.await.unwrap().unwrap();
    assert!(later.reachable() && later.problem().is_none());
    assert_eq!(later.get().unwrap().calls("root"), 1);
}

#[tokio::test]
async fn calls_that_may_not_wait_for_ever_time_out() {
    let (later, _ends) = later(Some(Duration::from_millis(1)));
    assert_eq!(later.root().await.unwrap_err(), Error::TimedOut);
}

/// The limit began with the first attempt, for all calls together; a call whose deadline is earlier
/// ends then.
#[tokio::test]
async fn a_server_that_was_tried_for_the_limit_is_not_waited_for_by_each_call() {
    let limit = Duration::from_secs(3600);
    let remembered = Remembered::of(&MemRemote::new());
    let away = || State::<MemRemote>::Away("no answer".to_owned());
    let sim = Arc::new(SimClock::new());
    let clock = Arc::clone(&sim) as Arc<dyn Clock>;
    let later = Later::new(away(), remembered, Some(limit), Arc::clone(&clock));
    let caller = |wait| {
        let deadline = Deadline::new(clock.instant(), wait);
        Cred::root().until(Some(deadline))
    };
    let file = Handle::new(b"file");
    let brief = caller(Duration::from_millis(1));
    let asking = async {
        let asked = later.getattr(&brief, &file).await;
        assert_eq!(asked.unwrap_err(), Error::TimedOut);
    };
    let moving = async {
        sim.asleep(1).await;
        sim.advance(Duration::from_millis(1));
    };
    tokio::join!(asking, moving);
    sim.advance(limit);
    assert_eq!(later.getattr(&caller(limit), &file).await.unwrap_err(), Error::TimedOut);
}

#[tokio::test]
async fn shutdown_ends_calls_and_tries() {
    let (later, ends) = later(None);
    let asking = tokio::spawn({
        let later = later.clone();
        async move { later.root().await }
    });
    later.shutdown();
    assert_eq!(asking.await.unwrap().unwrap_err(), Error::Shutdown);
    assert_eq!(later.root().await.unwrap_err(), Error::Shutdown);
    ends.closed().await;

    let reached = Later::reached(MemRemote::new());
    reached.shutdown();
    assert_eq!(reached.root().await.unwrap_err(), Error::Shutdown);
}

#[tokio::test]
async fn no_caller_left_means_no_more_tries() {
    let (later, ends) = later(None);
    drop(later);
    ends.closed().await;
}

#[tokio::test]
async fn what_was_remembered_holds_until_it_is_reached() {
    let remembered = MemRemote::new();
    remembered.give_leases();
    let mut remembered = Remembered::of(&remembered);
    remembered.limits.read_max = 4096;
    let (now, go) = (MemRemote::new(), Arc::new(tokio::sync::Notify::new()));
    let wanted = now.limits().read_max;
    let (taken, going) = (Mutex::new(Some(now)), Arc::clone(&go));
    let later = Later::begin(remembered, String::new(), None, Arc::new(RealClock), move || {
        let (now, going) = (taken.lock().unwrap().take(), Arc::clone(&going));
        async move {
            going.notified().await;
            now.ok_or("once only")
        }
    });
    assert_eq!(later.limits().read_max, 4096);
    assert!(later.gives_leases());
    go.notify_one();
    until(&later, |state| matches!(state, State::Reached(_))).await;
    assert_eq!(later.limits().read_max, wanted);
    assert!(!later.gives_leases());
}

/// Counts its notifications.
#[derive(Default)]
struct Counting(AtomicUsize);

impl Watcher for Counting {
    fn distrust<'a>(&'a self, _: &'a Handle) -> LeaseHandled<'a> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Box::pin(std::future::ready(()))
    }

    fn write_back<'a>(&'a self, _: &'a Handle) -> LeaseHandled<'a> {
        Box::pin(std::future::ready(()))
    }
}

/// A watcher is notified of leases, whether it was set before the server was reached or after.
#[tokio::test]
async fn watchers_are_handed_on() {
    for before in [true, false] {
        let (server, (later, ends)) = (MemRemote::new(), later(None));
        server.give_leases();
        let other = server.another_client();
        let counting = Arc::new(Counting::default());
        let weak: Weak<dyn Watcher> = Arc::downgrade(&counting) as Weak<dyn Watcher>;
        if before {
            later.watch(weak.clone());
        }
        ends.send(Ok(server)).unwrap();
        until(&later, |state| matches!(state, State::Reached(_))).await;
        if !before {
            later.watch(weak);
        }
        let root = later.root().await.unwrap().handle;
        let cred = Cred::root();
        let judged = later.access(&cred, &root, Access::ALL).await.unwrap();
        let lease = judged.lease.expect("it gives leases");
        let name = OsStr::new("new");
        let made = other.make(&cred, &root, name, New::File, SetAttr::default());
        made.await.unwrap();
        assert!(!lease.holds());
        assert_eq!(counting.0.load(Ordering::SeqCst), 1, "before {before}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_contract_of_every_server_is_kept_behind_it() {
    let (later, ends) = later(None);
    let model = MemRemote::new();
    let traits = Traits::default().with_elsewhere(Arc::new(model.another_client()));
    ends.send(Ok(model)).unwrap();
    let root = later.root().await.unwrap().handle;
    let remote: Arc<dyn Remote> = Arc::new(later);
    for case in cases() {
        match case.check(&remote, &root, &traits).await {
            Verdict::Passed => {}
            Verdict::Skipped(reason) => panic!("{} skipped: {reason}", case.name),
            Verdict::Failed(text) => panic!("{}: {text}", case.name),
        }
    }
}
