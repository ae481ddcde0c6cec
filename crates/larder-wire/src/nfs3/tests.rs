//! Every type against itself and against another codec.

use super::*;
use crate::sample::{Sample, Source, check_types};
use crate::xdr::to_segments;

check_types!(arguments_survive:
    GETATTR3args, SETATTR3args, LOOKUP3args, ACCESS3args, READLINK3args, READ3args, WRITE3args,
    CREATE3args, MKDIR3args, SYMLINK3args, MKNOD3args, REMOVE3args, RMDIR3args, RENAME3args,
    LINK3args, READDIR3args, READDIRPLUS3args, FSSTAT3args, FSINFO3args, PATHCONF3args,
    COMMIT3args,
);
check_types!(results_survive:
    GETATTR3res, SETATTR3res, LOOKUP3res, ACCESS3res, READLINK3res, READ3res, WRITE3res,
    CREATE3res, REMOVE3res, RENAME3res, LINK3res, READDIR3res, READDIRPLUS3res, FSSTAT3res,
    FSINFO3res, PATHCONF3res, COMMIT3res,
);

/// Our encoding of a sample is read by the other codec, and what that writes again is ours.
fn agree<Ours, Theirs>(entropy: &[u8])
where
    Ours: Sample + Encode + std::fmt::Debug,
    Theirs: theirs::Pack + theirs::Unpack,
{
    let value = Ours::sample(&mut Source(entropy));
    let ours = to_segments(&value).to_bytes();
    let (read, length) =
        Theirs::unpack(&mut &ours[..]).unwrap_or_else(|error| panic!("{error:?} in {value:?}"));
    assert_eq!(length, ours.len(), "{value:?}");
    let mut again = Vec::new();
    read.pack(&mut again).expect("a vector takes all");
    assert_eq!(again, ours, "{value:?}");
}

mod theirs {
    pub(super) use nfs3_types::nfs3::*;
    pub(super) use nfs3_types::xdr_codec::{Pack, Unpack};
}

macro_rules! agree_on {
    ($( $type:ident ),+ $(,)?) => {
        proptest::proptest! {
            #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]
            #[test]
            fn another_codec_agrees(
                entropy in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..700),
            ) {
                $( agree::<$type, theirs::$type>(&entropy); )+
            }
        }
    };
}

// MKNOD's arguments are left out: the other codec does not write the arms that hold nothing.
agree_on!(
    GETATTR3args,
    SETATTR3args,
    LOOKUP3args,
    ACCESS3args,
    READLINK3args,
    READ3args,
    WRITE3args,
    CREATE3args,
    MKDIR3args,
    SYMLINK3args,
    REMOVE3args,
    RMDIR3args,
    RENAME3args,
    LINK3args,
    READDIR3args,
    READDIRPLUS3args,
    FSSTAT3args,
    FSINFO3args,
    PATHCONF3args,
    COMMIT3args,
    GETATTR3res,
    SETATTR3res,
    LOOKUP3res,
    ACCESS3res,
    READLINK3res,
    READ3res,
    WRITE3res,
    CREATE3res,
    REMOVE3res,
    RENAME3res,
    LINK3res,
    READDIR3res,
    READDIRPLUS3res,
    FSSTAT3res,
    FSINFO3res,
    PATHCONF3res,
    COMMIT3res,
);

#[test]
fn entry_sizes_are_known_before_encoding() {
    let entropy: Vec<u8> = (0..=255).collect();
    for start in 0..200 {
        let source = &mut Source(&entropy[start..]);
        let (entry, plus) = (entry3::sample(source), entryplus3::sample(source));
        assert_eq!(4 + to_segments(&entry).len(), entry.encoded_bytes());
        assert_eq!(4 + to_segments(&plus).len(), plus.encoded_bytes());
    }
}
