//! Which crate may use which.
//!
//! The table is the architecture: an arrow that is not in it needs an ADR first. It speaks of
//! `[dependencies]` and `[build-dependencies]`; what tests link (`[dev-dependencies]`) is free,
//! since cargo keeps it out of what is shipped.

use anyhow::{Context, Result};

use super::{Complaint, Tree};

/// Crate, and the crates of ours that it may link.
const ALLOWED: [(&str, &[&str]); 20] = [
    ("larder-vfs", &[]),
    ("larder-wire", &[]),
    ("larder-io", &[]),
    ("larder-cache", &["larder-io"]),
    // It knows versions of files, and neither who has them nor where their receipts are kept.
    ("larder-archive", &[]),
    ("larder-class", &[]),
    ("larder-rebuild", &[]),
    ("larder-names", &["larder-vfs", "larder-io", "larder-cache"]),
    ("larder-client", &["larder-vfs", "larder-io", "larder-cache", "larder-class"]),
    ("larder-rpc", &["larder-wire", "larder-io"]),
    // The other side of a disk: for clients and for the metadata server.
    ("larder-disk-client", &["larder-rpc", "larder-wire", "larder-io"]),
    (
        "larder-remote",
        &["larder-vfs", "larder-rpc", "larder-wire", "larder-io", "larder-disk-client"],
    ),
    // It runs with a privilege of root: it links nothing that it does not need.
    ("larder-helper", &[]),
    ("larder-fuse", &["larder-vfs", "larder-io", "larder-helper"]),
    ("larder-nfsd", &["larder-vfs", "larder-rpc", "larder-wire", "larder-io"]),
    (
        "larder-meta",
        &["larder-rpc", "larder-wire", "larder-io", "larder-disk-client", "larder-archive"],
    ),
    // A disk knows no names: it must not link larder-meta. It reads other disks as their client.
    ("larder-disk", &["larder-rpc", "larder-wire", "larder-io", "larder-disk-client"]),
    // The bench measures rivals with the same code, so it links nothing that it measures.
    ("larder-bench", &["larder-io"]),
    ("larder", &[ANY]),
    (TESTKIT, &[ANY]),
];

/// In the table: every crate of ours.
const ANY: &str = "*";

/// Only for tests: nothing that is shipped may link it.
const TESTKIT: &str = "larder-testkit";

/// Complains of every arrow that is not in the table.
pub(super) fn check(tree: &Tree) -> Result<Vec<Complaint>> {
    let mut complaints = Vec::new();
    for file in &tree.files {
        let Some(folder) =
            file.path.strip_prefix("crates/").and_then(|p| p.strip_suffix("/Cargo.toml"))
        else {
            continue;
        };
        let manifest: toml::Table = file.text.parse().with_context(|| file.path.clone())?;
        let name = manifest.get("package").and_then(|p| p.get("name")).and_then(|n| n.as_str());
        if name != Some(folder) {
            complaints.push(Complaint::new(
                &file.path,
                0,
                format!("the crate must be called {folder}, as its folder"),
            ));
        }
        let Some((_, allowed)) = ALLOWED.iter().find(|(name, _)| *name == folder) else {
            complaints.push(Complaint::new(
                &file.path,
                0,
                "this crate is not in the table of allowed arrows",
            ));
            continue;
        };
        for seen in linked(&manifest).filter(|seen| !may_link(allowed, seen)) {
            complaints.push(Complaint::new(&file.path, 0, format!("{folder} may not link {seen}")));
        }
    }
    Ok(complaints)
}

fn may_link(allowed: &[&str], seen: &str) -> bool {
    seen != TESTKIT && (allowed.contains(&ANY) || allowed.contains(&seen))
}

/// The crates of ours that a manifest links.
fn linked(manifest: &toml::Table) -> impl Iterator<Item = &str> {
    ["dependencies", "build-dependencies"]
        .into_iter()
        .filter_map(|section| manifest.get(section)?.as_table())
        .flat_map(|table| table.keys().map(String::as_str))
        .filter(|name| *name == "larder" || name.starts_with("larder-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(name: &str, rest: &str) -> Vec<String> {
        let manifest = format!("[package]\nname = \"{name}\"\n{rest}");
        let tree = Tree::of(&[(&format!("crates/{name}/Cargo.toml"), &manifest)]);
        check(&tree).unwrap().into_iter().map(|complaint| complaint.text).collect()
    }

    #[test]
    fn arrows_of_the_table_are_allowed() {
        assert!(
            complaints("larder-cache", "[dependencies]\nlarder-io.workspace = true\nredb = \"4\"")
                .is_empty()
        );
        assert!(complaints("larder", "[dependencies]\nlarder-nfsd.workspace = true").is_empty());
    }

    #[test]
    fn other_arrows_are_not() {
        for (name, seen) in [
            ("larder-vfs", "larder-io"),
            ("larder-fuse", "larder-client"),
            ("larder-cache", "larder-vfs"),
            ("larder-disk", "larder-meta"),
            ("larder-rpc", "larder-vfs"),
            ("larder", "larder-testkit"),
        ] {
            let text =
                complaints(name, &format!("[dependencies]\n{seen} = {{ path = \"../{seen}\" }}"));
            assert_eq!(text, [format!("{name} may not link {seen}")]);
        }
    }

    #[test]
    fn tests_may_link_what_they_need() {
        assert!(
            complaints("larder-vfs", "[dev-dependencies]\nlarder-testkit.workspace = true")
                .is_empty()
        );
    }

    #[test]
    fn unknown_and_misnamed_crates_are_told() {
        assert_eq!(complaints("larder-new", "").len(), 1);
        let tree = Tree::of(&[("crates/larder-io/Cargo.toml", "[package]\nname = \"other\"")]);
        assert_eq!(check(&tree).unwrap().len(), 1);
    }
}
