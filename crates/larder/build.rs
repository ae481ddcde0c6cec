//! Tells the program which commit it is built from: `LARDER_COMMIT`, which `version.rs` reads.
//!
//! This crate alone is built again when the commit changes. Without git, or outside of the
//! project's own repository (in a source archive), the commit is `unknown`.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What the program is made of, as patterns of git below the repository's top. Tests are not.
const SOURCES: [&str; 4] = ["Cargo.toml", "Cargo.lock", "crates/*/Cargo.toml", "crates/*/src"];

fn main() {
    // Without any such line, cargo would run this again for each change of the crate's tests.
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-env=LARDER_COMMIT={}", commit().as_deref().unwrap_or("unknown"));
}

/// The commit, marked if a source differs from it.
fn commit() -> Option<String> {
    let manifest = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR")?);
    let top = manifest.ancestors().nth(2)?.canonicalize().ok()?;
    // An archive may have been unpacked within another repository.
    let repository = PathBuf::from(git(&top, &["rev-parse", "--show-toplevel"])?);
    if repository.canonicalize().ok()? != top {
        return None;
    }
    watch(&top);
    let commit = git(&top, &["rev-parse", "--short", "HEAD"])?;
    let mut status = vec!["status", "--porcelain", "--"];
    let magic = SOURCES.map(|source| format!(":(glob){source}"));
    let below = SOURCES.map(|source| format!(":(glob){source}/**"));
    status.extend(magic.iter().chain(&below).map(String::as_str));
    let is_changed = !git(&top, &status)?.is_empty();
    Some(if is_changed { format!("{commit}-dirty") } else { commit })
}

/// Has cargo run this again when the commit or a source changes.
fn watch(top: &Path) {
    let branch = git(top, &["symbolic-ref", "--quiet", "HEAD"]);
    let names = ["HEAD", "logs/HEAD", "packed-refs"].into_iter().chain(branch.as_deref());
    for name in names {
        let path = git(top, &["rev-parse", "--git-path", name]).map(|path| top.join(path));
        watch_file(path);
    }
    let crates = std::fs::read_dir(top.join("crates")).into_iter().flatten().flatten();
    let crates: Vec<PathBuf> = crates.map(|entry| entry.path()).collect();
    let of_crates = ["Cargo.toml", "src"].map(|name| crates.iter().map(move |one| one.join(name)));
    let of_all = ["Cargo.toml", "Cargo.lock"].map(|name| top.join(name));
    for path in of_crates.into_iter().flatten().chain(of_all) {
        watch_file(Some(path));
    }
}

/// A path that does not exist would have cargo run this each time.
fn watch_file(path: Option<PathBuf>) {
    if let Some(path) = path.filter(|path| path.exists()) {
        println!("cargo::rerun-if-changed={}", path.display());
    }
}

/// What git says, if it succeeds.
fn git(top: &Path, arguments: &[&str]) -> Option<String> {
    // git status would write the index otherwise, for which somebody may be waiting.
    let mut git = Command::new("git");
    git.env("GIT_OPTIONAL_LOCKS", "0").current_dir(top).args(arguments);
    let said = git.output().ok().filter(|said| said.status.success())?;
    Some(String::from_utf8(said.stdout).ok()?.trim().to_owned())
}
