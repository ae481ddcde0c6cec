//! A server with names that were made here passes the suite of every server.

use larder_vfs::conformance::{Ability, Traits, Verdict, cases};

use super::front::Front;
use super::*;

async fn check(defers: bool) {
    let rig = Rig::new().await;
    let owner = Cred::root();
    let names: Arc<dyn Remote> = rig.names.clone();
    let remote = if defers { Arc::new(Front::new(names)) } else { names };
    let top = remote.root().await.unwrap().handle;
    let made = remote.make(&owner, &top, "below".as_ref(), New::Directory, mode(0o755)).await;
    let base = made.unwrap().found.handle;
    let traits = if defers {
        Traits::default().without(Ability::Locks, "nobody else sees what is made here")
    } else {
        Traits::default().with_elsewhere(Arc::new(rig.server.another_client()))
    };
    let (mut passed, mut failed) = (0, Vec::new());
    for case in cases() {
        match case.check(&remote, &base, &traits).await {
            Verdict::Passed => passed += 1,
            Verdict::Skipped(_) => {}
            Verdict::Failed(text) => failed.push(format!("{}: {text}", case.name)),
        }
    }
    println!("{passed} cases passed");
    assert!(failed.is_empty() && passed > 50, "{passed} passed, {failed:#?}");
}

#[tokio::test]
async fn the_suite_passes_when_everything_goes_to_the_server() {
    check(false).await;
}

#[tokio::test]
async fn the_suite_passes_when_names_are_made_here() {
    check(true).await;
}
