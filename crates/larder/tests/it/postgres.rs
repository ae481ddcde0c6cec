//! Volumes with their metadata in PostgreSQL.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::harness::{larder, scratch, succeed};
use crate::kills::Kept;
use crate::several_disks::refusal;

fn command(words: &[&str], options: &[String]) -> Command {
    let mut command = larder();
    command.args(words).args(options);
    command
}

/// One line each, with the next step; and no password in it.
#[test]
fn a_database_that_cannot_be_used_is_refused_in_one_line() {
    let dir = scratch("larder-postgres-");
    let kept = Kept::postgres(dir.path());
    let (database, options) = (kept.database.as_ref().unwrap(), &kept.options);
    let meta = ["meta", "--listen", "127.0.0.1:0", "--take-over", "1s"];
    let refused = |command: &mut Command, word: &str| {
        let said = refusal(command);
        assert!(said.contains(word) && !said.contains("hush"), "{said}");
    };
    refused(&mut command(&meta, options), "it holds none: make one by larder volume create");
    let create = || command(&["volume", "create"], options);
    succeed(&mut create());
    refused(&mut create(), "has a volume already");
    let key = dir.path().join("key").display().to_string();
    let enrol = ["disk", "enrol", &key, "--size", "64M", "--address", "127.0.0.1:9"];

    let mut server = kept.server(&[]);
    server.restart();
    let owned = "another process has the volume: end that, or wait for";
    refused(&mut command(&meta, options), owned);
    refused(&mut command(&["volume", "check"], options), owned);
    refused(&mut command(&enrol, options), owned);
    assert!(!fs::exists(&key).unwrap());
    let status = |name: &str| {
        let mut status = server.larder_here();
        status.args(["volume", "status", "--json", &server.address().to_string()]);
        let told: serde_json::Value = serde_json::from_slice(&succeed(&mut status).stdout).unwrap();
        told[name].clone()
    };
    assert_eq!(status("size_bytes"), 0);
    drop(server);
    kept.check();

    let elsewhere = |words: &str| {
        let engine = format!("postgres:{words}");
        ["--engine", &engine, "--keys", "/nowhere"].map(str::to_owned).to_vec()
    };
    let words = database.words("there_is_none");
    refused(&mut command(&meta, &elsewhere(&words)), "check its name, or make it by createdb");
    let secret = dir.path().join("pass");
    fs::write(&secret, "*:*:*:*:hush\n").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o644)).unwrap();
    let words = format!("{words} passfile={}", secret.display());
    refused(&mut command(&meta, &elsewhere(&words)), "chmod 600");
    database.sql("d0", "UPDATE larder_store SET format = 'thesis 3'");
    refused(&mut command(&meta, options), "it is \"thesis 3\", this version reads");
    let too_soon = command(&["meta", "--take-over", "1ms"], options).output().unwrap();
    assert_eq!(too_soon.status.code(), Some(2));
}
