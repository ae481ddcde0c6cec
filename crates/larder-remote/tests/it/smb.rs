//! SMB against Samba.

mod connections;
mod eager;
mod failures;
mod given_up;
mod kept;
mod kerberos;
mod leases;
mod places;
mod proxy;
mod setup;
mod variants;
mod watches;

use larder_vfs::conformance::{Ability, Traits, Verdict, cases};
use larder_vfs::{Access, Cred, New, Remote, Stability};
use setup::{Setup, pattern};
use std::sync::Arc;

/// What SMB servers lack, or Samba in particular.
fn traits() -> Traits {
    let modes = "modes and owners are those of the mount, not of the files";
    let no_special = "servers without POSIX extensions have none";
    Traits::default()
        .without(Ability::Modes, modes)
        .without(Ability::Chown, modes)
        .without(Ability::Sticky, modes)
        .without(Ability::LongSymlinks, "a link's target has 1,024 bytes at most")
        .without(Ability::SpecialFiles, no_special)
        .without(Ability::Devices, no_special)
        .without(Ability::ByteNames, "names travel as UTF-16")
        .without(Ability::Guard, "the case sets a mode, which is not kept")
        .without(Ability::Before, "only a lease proves what was before, and the cases take none")
        .without(Ability::ChangeTime, "Samba tells mtime for the change time")
        .without(Ability::HandlesOnce, "numbers come again, and Samba makes creation times up")
        .without(Ability::Allocate, "servers promise no room for a range")
        .without(Ability::UnwrittenHoles, "only files that are marked sparse have holes")
        .without(Ability::DirectoryLinks, "the link count of directories is not told")
}

/// Runs the suite of `larder-vfs`, all cases on one mount.
async fn conforms(setup: Setup, remote: Arc<dyn Remote>, traits: &Traits) {
    let mut failures = Vec::new();
    let elsewhere = setup::mount(&setup::options(&setup.server)).await;
    let traits = &traits.clone().with_elsewhere(elsewhere);
    for case in cases() {
        match case.check(&remote, &setup.root, traits).await {
            Verdict::Passed => (),
            Verdict::Skipped(reason) => println!("{} skipped: {reason}", case.name),
            Verdict::Failed(why) => failures.push(format!("{}: {why}", case.name)),
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_conformance_suite_passes_over_smb() {
    let setup = Setup::new(|_| (), |_| ()).await;
    let remote = setup.smb.clone();
    conforms(setup, remote, &traits()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_conformance_suite_passes_with_leases_on_everything() {
    let setup = Setup::new(|_| (), |_| ()).await;
    let remote = Arc::new(eager::Eager(setup.smb.clone()));
    conforms(setup, remote, &traits()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_conformance_suite_passes_over_several_connections() {
    let setup = Setup::new(|_| (), |options| options.connections = 3).await;
    let remote = setup.smb.clone();
    conforms(setup, remote, &traits()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_conformance_suite_passes_over_several_connections_with_leases() {
    let setup = Setup::new(|_| (), |options| options.connections = 3).await;
    let remote = Arc::new(eager::Eager(setup.smb.clone()));
    conforms(setup, remote, &traits()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_conformance_suite_passes_encrypted() {
    let setup = Setup::new(|samba| samba.encryption = true, |_| ()).await;
    let remote = setup.smb.clone();
    conforms(setup, remote, &traits()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_conformance_suite_passes_over_smb_2_1() {
    let setup = Setup::new(|samba| samba.protocol_max = "SMB2_10", |_| ()).await;
    let remote = setup.smb.clone();
    conforms(setup, remote, &traits()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_survives_over_smb() {
    let setup = Setup::new(|_| (), |_| ()).await;
    setup.data_survives("data", 5_000_001).await;
}

#[tokio::test]
async fn data_survives_in_small_requests_over_smb() {
    let small = |options: &mut larder_remote::smb::MountOptions| {
        options.read_max = 8192;
        options.write_max = 4096;
    };
    let setup = Setup::new(|_| (), small).await;
    setup.data_survives("data", 300_001).await;
}

#[tokio::test]
async fn modes_of_the_mount_keep_users_apart() {
    let private = |options: &mut larder_remote::smb::MountOptions| {
        (options.uid, options.gid) = (1000, 1000);
        (options.file_mode, options.dir_mode) = (0o640, 0o750);
    };
    let setup = Setup::new(|_| (), private).await;
    let owner = Cred::new(1000, 1000, &[]);
    let (member, other) = (Cred::new(1001, 1000, &[]), Cred::new(1002, 1002, &[]));
    let name = "secret".as_ref();
    let made = setup.smb.make(&owner, &setup.root, name, New::File, Default::default()).await;
    let file = made.unwrap().found.handle;
    for (cred, reads, writes) in
        [(&owner, true, true), (&member, true, false), (&other, false, false)]
    {
        let read = setup.smb.read(cred, &file, None, 0, 1).await;
        assert_eq!(read.is_ok(), reads, "{cred:?} reads");
        let data = bytes::Bytes::from_static(b"x");
        let written = setup.smb.write(cred, &file, None, 0, data, Stability::FileSync).await;
        assert_eq!(written.is_ok(), writes, "{cred:?} writes");
        let granted = setup.smb.access(cred, &file, Access::ALL).await.unwrap().granted;
        assert_eq!(granted.contains(Access::READ), reads, "{cred:?}");
        assert_eq!(granted.contains(Access::MODIFY), writes, "{cred:?}");
        let found = setup.smb.lookup(cred, &setup.root, name).await;
        assert_eq!(found.is_ok(), reads, "{cred:?} looks up");
        let removed =
            setup.smb.remove(cred, &setup.root, "none".as_ref(), larder_vfs::Removal::File);
        let wanted =
            if writes { larder_vfs::Error::NotFound } else { larder_vfs::Error::AccessDenied };
        assert_eq!(removed.await.unwrap_err(), wanted, "{cred:?} removes");
    }
}

#[tokio::test]
async fn whether_case_counts_is_found_out() {
    for (lines, insensitive) in [("case sensitive = no", true), ("case sensitive = yes", false)] {
        let setup = Setup::new(|samba| samba.share_lines = lines, |_| ()).await;
        let file = setup.file("Name", b"x").await;
        let smb = setup::mount(&setup::options(&setup.server)).await;
        assert_eq!(smb.limits().case_insensitive, insensitive, "{lines}");
        assert_eq!(setup.find("nAmE").await, insensitive.then_some(file), "{lines}");
    }
}

#[tokio::test]
async fn a_rename_may_change_case_only() {
    let setup = Setup::new(|samba| samba.share_lines = "case sensitive = no", |_| ()).await;
    setup.file("Name", b"x").await;
    let (cred, root) = (&setup.cred, &setup.root);
    setup.smb.rename(cred, (root, "Name".as_ref()), (root, "NAME".as_ref())).await.unwrap();
    let names = std::fs::read_dir(setup.dir.path()).unwrap();
    assert!(names.map(|entry| entry.unwrap().file_name()).eq(["NAME"]));
}

#[tokio::test]
async fn every_command_is_accounted_for() {
    let setup = Setup::new(|_| (), |_| ()).await;
    let file = setup.file("file", &pattern(100_000)).await;
    setup.read(&file, 0, 100_000).await;
    let stats = setup.smb.stats();
    let of = |name: &str| *stats.procedures.iter().find(|one| one.name == name).unwrap();
    assert_eq!((of("WRITE").calls, of("READ").calls), (1, 1));
    assert!((100_000..101_000).contains(&of("WRITE").bytes_sent));
    assert!((100_000..101_000).contains(&of("READ").bytes_received));
    assert!(of("CREATE").latency.count >= 3 && of("CREATE").latency.max_us > 0);
    assert!(stats.connections[0].connected);
}

#[tokio::test]
async fn read_only_files_can_be_removed_and_replaced() {
    let setup = Setup::new(|_| (), |_| ()).await;
    let (cred, root) = (&setup.cred, &setup.root);
    for name in ["one", "two"] {
        let file = setup.file(name, b"x").await;
        let set = larder_vfs::SetAttr { mode: Some(0o444), ..Default::default() };
        let changed = setup.smb.setattr(cred, &file, set, None).await.unwrap();
        assert_eq!(changed.after.unwrap().mode, 0o444);
    }
    setup.file("three", b"3").await;
    setup.smb.rename(cred, (root, "three".as_ref()), (root, "two".as_ref())).await.unwrap();
    setup.smb.remove(cred, root, "one".as_ref(), larder_vfs::Removal::File).await.unwrap();
    assert_eq!(std::fs::read(setup.dir.path().join("two")).unwrap(), b"3");
    assert!(!setup.dir.path().join("one").exists());
}
