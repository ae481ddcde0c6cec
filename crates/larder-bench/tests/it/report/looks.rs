//! How a page looks: on a telephone, and in its colours.

use std::collections::{BTreeMap, BTreeSet};

use roxmltree::Node;

use super::{check_page, report, text_of};
use crate::made_up;

const HTML: &str = "http://www.w3.org/1999/xhtml";
const SVG: &str = "http://www.w3.org/2000/svg";

/// What a telephone has room for: 400 pixels less the margins of the page, in which the style sheet
/// shows the narrow one of both drawings.
#[test]
fn a_page_fits_a_telephone() {
    const ROOM: f64 = 400.0 - 2.0 * 16.0;
    let report = report(&made_up::all());
    check_page(&report.html, |page| {
        let divs = page.descendants().filter(|node| node.attribute("class") == Some("narrow"));
        let mut drawings = 0;
        for drawing in divs.flat_map(|div| div.children().filter(Node::is_element)) {
            let width: f64 = drawing.attribute("width").unwrap().parse().unwrap();
            assert!(width <= ROOM, "{width}");
            drawings += 1;
        }
        let figures = page.descendants().filter(|node| node.has_tag_name((HTML, "figure")));
        assert!(drawings > 0 && drawings == figures.count(), "{drawings}");
    });
    let style = report.html.split("</style>").next().unwrap();
    let small = style.split("@media (max-width: 680px)").nth(1).unwrap();
    let small = &small[..small.find("@media").unwrap()];
    for rule in [".wide { display: none; }", ".narrow { display: block; }", "padding: 1.3rem 1rem"]
    {
        assert!(small.contains(rule), "{rule}");
    }
}

/// Colours of procedures by their names, as the legends of a page have them.
fn colours_of_procedures(html: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut colours: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    check_page(html, |page| {
        let is_of_procedure =
            |class: &str| class.strip_prefix('p').is_some_and(|rest| rest.parse::<usize>().is_ok());
        for part in page.descendants().filter(|node| node.has_tag_name((SVG, "rect"))) {
            let class = part.attribute("class").unwrap_or_default();
            let Some(class) = class.split(' ').find(|class| is_of_procedure(class)) else {
                continue;
            };
            // A part of a bar says what it is when it is pointed at.
            let Some(hover) = part.children().find(|child| child.has_tag_name((SVG, "title")))
            else {
                continue;
            };
            let text = text_of(hover);
            let name = text.split(": ").nth(1).unwrap().split(' ').next().unwrap();
            colours.entry(name.to_owned()).or_default().insert(class.to_owned());
        }
    });
    colours
}

#[test]
fn a_procedure_has_one_colour_on_every_page_and_no_two_have_the_same() {
    let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for run in made_up::all() {
        for (name, colours) in colours_of_procedures(&report(&[run]).html) {
            all.entry(name).or_default().extend(colours);
        }
    }
    assert!(all.len() > 3, "{all:?}");
    assert!(all.values().all(|colours| colours.len() == 1), "{all:?}");
    let distinct: BTreeSet<_> = all.values().flatten().collect();
    assert_eq!(distinct.len(), all.len(), "{all:?}");
}
