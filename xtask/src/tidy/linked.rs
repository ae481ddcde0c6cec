//! A crate uses every dependency in its manifest: an unused one costs builds and misleads readers.

use anyhow::{Context, Result};

use super::{Complaint, Tree, lex};

/// Sections of a manifest, and whether their crates are for tests only.
const SECTIONS: [(&str, bool); 3] =
    [("dependencies", false), ("build-dependencies", false), ("dev-dependencies", true)];

/// Complains of dependencies whose names are nowhere in the code that may use them.
pub(super) fn check(tree: &Tree) -> Result<Vec<Complaint>> {
    let mut complaints = Vec::new();
    for file in &tree.files {
        let Some(folder) = folder(&file.path) else { continue };
        let manifest: toml::Table = file.text.parse().with_context(|| file.path.clone())?;
        for (section, is_for_tests) in SECTIONS {
            let Some(linked) = manifest.get(section).and_then(|linked| linked.as_table()) else {
                continue;
            };
            let unused = linked.keys().filter(|name| !is_used(tree, folder, name, is_for_tests));
            complaints.extend(unused.map(|name| {
                let text = format!("{name} is linked ([{section}]) and not used");
                Complaint::new(&file.path, 0, text)
            }));
        }
    }
    Ok(complaints)
}

/// The folder of a crate of ours, from its manifest.
fn folder(path: &str) -> Option<&str> {
    let folder = path.strip_suffix("/Cargo.toml")?;
    (folder == "xtask" || folder.starts_with("crates/")).then_some(folder)
}

fn is_used(tree: &Tree, folder: &str, name: &str, is_for_tests: bool) -> bool {
    let name = name.replace('-', "_");
    let of_crate = |path: &str| {
        let inner = path.strip_prefix(folder).and_then(|rest| rest.strip_prefix('/'));
        inner.is_some_and(|inner| is_for_tests || inner.starts_with("src/") || inner == "build.rs")
    };
    tree.rust().filter(|file| of_crate(&file.path)).any(|file| {
        // Most files name few crates, and looking is cheaper than lexing.
        file.text.contains(&name)
            && lex::code(&file.text)
                .lines()
                .any(|line| lex::words(line).any(|(word, _)| word == name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_linked_and_not_named_is_told() {
        let manifest = "[dependencies]\nused-one.workspace = true\ndead = \"1\"\n[dev-dependencies]\ntested = \"1\"\nidle = \"1\"\n";
        let tree = Tree::of(&[
            ("crates/a/Cargo.toml", manifest),
            ("crates/a/src/lib.rs", "//! dead\nuse used_one::X;\n"),
            ("crates/a/tests/it/main.rs", "//! A\nuse dead::X;\nuse tested::Y; // idle\n"),
            ("crates/b/src/lib.rs", "//! B\nuse idle::X;\n"),
        ]);
        let told: Vec<_> = check(&tree).unwrap().into_iter().map(|one| one.text).collect();
        let expected = [
            "dead is linked ([dependencies]) and not used",
            "idle is linked ([dev-dependencies]) and not used",
        ];
        assert_eq!(told, expected);
    }
}
