//! What the answer to a CHANGE_NOTIFY tells (MS-FSCC, 2.7.1).

use super::expected::Event;
use super::link::Reply;
use smb2::msg::change_notify::ChangeNotifyResponse;
use smb2::pack::ReadCursor;

/// Bytes of a notice before its name.
const HEADER_BYTES: usize = 12;

/// The names that came and went, in this order. `None` if the server does not say which: there were
/// too many, or the directory is no longer watched.
pub(super) fn read(reply: &Reply) -> Option<Vec<(String, Event)>> {
    reply.check().ok()?;
    parse(&reply.read::<ChangeNotifyResponse>().ok()?.output_data)
}

fn parse(mut bytes: &[u8]) -> Option<Vec<(String, Event)>> {
    let mut notices = Vec::new();
    loop {
        let mut cursor = ReadCursor::new(bytes);
        let next = cursor.read_u32_le().ok()? as usize;
        let action = cursor.read_u32_le().ok()?;
        let length = cursor.read_u32_le().ok()? as usize;
        let name = cursor.read_utf16_le(length).ok()?;
        match action {
            // Added, or the new name of a rename.
            1 | 5 => notices.push((name, Event::Come)),
            // Removed, or the former name of a rename.
            2 | 4 => notices.push((name, Event::Gone)),
            // Modified, and streams: no name has changed.
            3 | 6..=8 => (),
            _ => return None,
        }
        match next {
            0 => return Some(notices),
            _ if next < HEADER_BYTES => return None,
            _ => bytes = bytes.get(next..)?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn notice(next: u32, action: u32, name: &str) -> Vec<u8> {
        let name: Vec<u8> = name.encode_utf16().flat_map(u16::to_le_bytes).collect();
        let length = u32::try_from(name.len()).unwrap();
        let mut bytes: Vec<u8> =
            [next, action, length].into_iter().flat_map(u32::to_le_bytes).collect();
        bytes.extend(name);
        bytes.resize(bytes.len().max(next as usize), 0);
        bytes
    }

    #[test]
    fn names_come_and_go() {
        let bytes = [notice(20, 4, "ab"), notice(16, 3, "x"), notice(0, 5, "\u{1f980}")].concat();
        let crab = ("\u{1f980}".to_owned(), Event::Come);
        assert_eq!(parse(&bytes), Some(vec![("ab".to_owned(), Event::Gone), crab]));
        for (action, event) in [(1, Event::Come), (2, Event::Gone)] {
            assert_eq!(parse(&notice(0, action, "n")), Some(vec![("n".to_owned(), event)]));
        }
        assert_eq!(parse(&notice(0, 8, "n")), Some(vec![]));
    }

    #[test]
    fn what_says_nothing_is_no_notice() {
        assert_eq!(parse(&[]), None, "there were too many");
        assert_eq!(parse(&notice(0, 9, "n")), None, "an action that does not exist");
        assert_eq!(parse(&notice(8, 1, "n")), None, "they overlap");
        assert_eq!(parse(&notice(40, 1, "n")), None, "the next one is missing");
        assert_eq!(parse(&notice(0, 1, "name")[..16]), None, "it is cut off");
    }

    proptest! {
        #[test]
        fn hostile_bytes_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }
    }
}
