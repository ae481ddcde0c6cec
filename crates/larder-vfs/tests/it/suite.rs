//! The conformance suite on the model.

use std::collections::BTreeSet;
use std::sync::Arc;

use larder_vfs::conformance::{Ability, Traits, Verdict, cases};
use larder_vfs::{Cred, Error, Handle, MemRemote, New, Remote, RemoteLimits, SetAttr};

use crate::block_on;

/// A directory for the cases of these traits' owner.
fn base(remote: &Arc<dyn Remote>, owner: &Cred) -> Handle {
    block_on(async {
        let root = remote.root().await.unwrap().handle;
        let set = SetAttr { mode: Some(0o755), ..SetAttr::default() };
        let made = remote.make(owner, &root, "base".as_ref(), New::Directory, set).await;
        made.unwrap().found.handle
    })
}

/// Runs everything, and returns what was skipped.
fn passes(remote: MemRemote, traits: &Traits) -> Vec<&'static str> {
    let traits = &traits.clone().with_elsewhere(Arc::new(remote.another_client()));
    let remote: Arc<dyn Remote> = Arc::new(remote);
    let base = base(&remote, &traits.owner);
    let mut skipped = Vec::new();
    let mut failures = Vec::new();
    for case in cases() {
        match block_on(case.check(&remote, &base, traits)) {
            Verdict::Passed => (),
            Verdict::Skipped(_) => skipped.push(case.name),
            Verdict::Failed(text) => failures.push(format!("{}: {text}", case.name)),
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    skipped
}

#[test]
fn the_model_passes_everything() {
    assert_eq!(passes(MemRemote::new(), &Traits::default()), [""; 0]);
}

#[test]
fn the_model_passes_with_an_owner_that_is_not_the_superuser() {
    let reason = "the owner is not the superuser";
    let traits = Traits::default()
        .with_owner(Cred::new(1000, 1000, &[1001]))
        .without(Ability::Chown, reason)
        .without(Ability::Devices, reason);
    let skipped = passes(MemRemote::new(), &traits);
    let wanted = [
        "make_devices",
        "set_owner_and_group",
        "groups_count",
        "set_gid_directories_pass_their_group_on",
    ];
    assert_eq!(skipped, wanted);
}

#[test]
fn the_model_passes_with_small_limits() {
    let limits = RemoteLimits {
        read_max: 512,
        write_max: 512,
        readdir_preferred: 512,
        file_size_max: (1 << 33) - 1,
        name_max: 60,
        time_delta_ns: 1,
        links: false,
        symlinks: false,
        case_insensitive: false,
        opens: false,
        by_name: false,
    };
    let traits = Traits::default()
        .without(Ability::HardLinks, "switched off")
        .without(Ability::Symlinks, "switched off");
    assert_eq!(passes(MemRemote::with_limits(limits), &traits).len(), 6);
}

#[test]
fn names_of_cases_are_distinct() {
    let names: BTreeSet<&str> = cases().iter().map(|case| case.name).collect();
    assert_eq!(names.len(), cases().len());
    assert!(names.len() >= 60);
}

#[test]
fn a_failing_server_fails_with_a_message() {
    let model = MemRemote::new();
    let remote = Arc::new(model.another_client());
    let base = base(&(Arc::clone(&remote) as _), &Cred::root());
    let traits = Traits::default();
    for case in cases() {
        // The first call makes the case's directory.
        let setup = Arc::clone(&remote) as Arc<dyn Remote>;
        remote.fail_next(1, Error::Io);
        let verdict = block_on(case.check(&setup, &base, &traits));
        assert_eq!(
            verdict,
            Verdict::Failed("cannot make its directory: input/output error".into())
        );
    }
    // A server that is out of reach from then on.
    let silent = MemRemote::new();
    silent.time_out();
    let remote: Arc<dyn Remote> = Arc::new(silent);
    let verdict = block_on(cases()[0].check(&remote, &base, &traits));
    assert!(matches!(verdict, Verdict::Failed(text) if text.contains("did not answer")));
}
