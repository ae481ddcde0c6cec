//! Each procedure, over both transports; each status that it can have.

use std::os::unix::fs::MetadataExt;

use larder_wire::nfs3::*;
use larder_wire::rpc::{Outcome, ReplyHeader};
use larder_wire::xdr::{Decode, Opaque, to_segments};

use crate::harness::{Client, Running, handle, mode, place, running, status};

#[tokio::test]
async fn every_procedure_is_served_over_tcp() {
    let server = running!();
    let mut client = server.tcp().await;
    every_procedure(&server, &mut client, 1 << 20).await;
    assert_all_counted(&server);
}

#[tokio::test]
async fn every_procedure_is_served_over_udp() {
    let server = running!();
    let mut client = server.udp().await;
    every_procedure(&server, &mut client, 32 << 10).await;
    assert_all_counted(&server);
}

fn assert_all_counted(server: &Running) {
    let stats = server.stats();
    assert_eq!(stats.nfs.len(), 22);
    for procedure in &stats.nfs {
        assert!(procedure.calls > 0 && procedure.errors < procedure.calls, "{procedure:?}");
        assert!(procedure.bytes_in >= 40 * procedure.calls, "{procedure:?}");
        assert!(procedure.bytes_out >= 24 * procedure.calls, "{procedure:?}");
    }
    assert_eq!(stats.refused, 0);
}

async fn every_procedure(server: &Running, client: &mut Client, transfer: u32) {
    client.call(&NULL3args {}).await;
    about_the_file_system(server, client, transfer).await;
    let file = files(server, client).await;
    data(server, client, file, transfer).await;
    names(server, client, file).await;
}

async fn about_the_file_system(server: &Running, client: &mut Client, transfer: u32) {
    let info = client.call(&FSINFO3args { fsroot: server.root }).await.unwrap();
    assert_eq!((info.rtmax, info.wtmax), (transfer, transfer));
    assert!(info.dtpref <= transfer && info.maxfilesize == i64::MAX as u64);
    assert_eq!(info.properties, 0x1b);
    assert_eq!(info.obj_attributes.unwrap().r#type, ftype3::NF3DIR);
    let limits = client.call(&PATHCONF3args { object: server.root }).await.unwrap();
    assert!(limits.name_max == 255 && limits.no_trunc && limits.case_preserving);
    let space = client.call(&FSSTAT3args { fsroot: server.root }).await.unwrap();
    assert!(space.tbytes >= space.fbytes && space.fbytes >= space.abytes && space.tbytes > 0);
}

async fn files(server: &Running, client: &mut Client) -> nfs_fh3 {
    let file = client.create(server.root, "file").await;
    assert_eq!(client.find(server.root, "file").await, Ok(file));
    let attr = client.call(&GETATTR3args { object: file }).await.unwrap().obj_attributes;
    let kernel = std::fs::metadata(server.path("file")).unwrap();
    assert_eq!((attr.fileid, attr.mode, attr.nlink), (kernel.ino(), 0o644, 1));

    let set = |guard| SETATTR3args { object: file, new_attributes: mode(0o600), guard };
    let wrong = nfstime3 { seconds: 1, nseconds: 2 };
    assert_eq!(status(client.call(&set(Some(wrong))).await), nfsstat3::NFS3ERR_NOT_SYNC);
    let done = client.call(&set(Some(attr.ctime))).await.unwrap();
    assert_eq!(done.obj_wcc.after.unwrap().mode, 0o600);
    let rights = client.call(&ACCESS3args { object: file, access: 0x3f }).await.unwrap();
    assert_eq!(rights.access, access3::READ | access3::MODIFY | access3::EXTEND);

    // An exclusive create may be sent twice, but only by the same client.
    let exclusive = |verifier: &[u8; 8]| CREATE3args {
        r#where: place(server.root, "exclusive"),
        how: createhow3::EXCLUSIVE(*verifier),
    };
    let first = handle(client.call(&exclusive(b"\xffverifie")).await);
    assert_eq!(handle(client.call(&exclusive(b"\xffverifie")).await), first);
    let other = client.call(&exclusive(b"\xffverifia")).await;
    assert_eq!(status(other), nfsstat3::NFS3ERR_EXIST);
    // An unchecked create opens an existing file, and truncates it.
    std::fs::write(server.path("there"), b"content").unwrap();
    let unchecked = CREATE3args {
        r#where: place(server.root, "there"),
        how: createhow3::UNCHECKED(sattr3 { size: Some(2), ..mode(0o777) }),
    };
    let opened = client.call(&unchecked).await.unwrap();
    assert_eq!(opened.obj_attributes.unwrap().size, 2);
    file
}

async fn data(server: &Running, client: &mut Client, file: nfs_fh3, transfer: u32) {
    let content: Vec<u8> = (0..transfer).map(|i| (i % 253) as u8).collect();
    let mut verifiers = Vec::new();
    for (offset, stable) in [
        (0, stable_how::UNSTABLE),
        (u64::from(transfer), stable_how::DATA_SYNC),
        (2 * u64::from(transfer), stable_how::FILE_SYNC),
    ] {
        let args = WRITE3args {
            file,
            offset,
            count: transfer,
            stable,
            data: bytes::Bytes::from(content.clone()).into(),
        };
        let written = client.call(&args).await.unwrap();
        assert_eq!((written.count, written.committed), (transfer, stable));
        assert_eq!(written.file_wcc.after.unwrap().size, offset + u64::from(transfer));
        verifiers.push(written.verf);
    }
    let committed = client.call(&COMMIT3args { file, offset: 0, count: 0 }).await.unwrap();
    assert!(verifiers.iter().all(|verifier| *verifier == committed.verf));
    assert_eq!(std::fs::read(server.path("file")).unwrap(), content.repeat(3));

    let size = 3 * u64::from(transfer);
    for (offset, count, expected_count, eof) in [
        (0, transfer, transfer, false),
        (5, 3, 3, false),
        (size - u64::from(transfer), transfer, transfer, true),
        (size - 3, 10, 3, true),
        (size, 10, 0, true),
        (u64::MAX, 10, 0, true),
        // A length above the transport's maximum is cut.
        (0, u32::MAX, transfer, false),
    ] {
        let read = client.call(&READ3args { file, offset, count }).await.unwrap();
        assert_eq!((read.count, read.eof), (expected_count, eof), "{offset} {count}");
        assert_eq!(read.data.len(), expected_count as usize);
        let cycle = u64::from(transfer);
        let agrees =
            |(i, byte): (usize, &u8)| u64::from(*byte) == (offset + i as u64) % cycle % 253;
        assert!(read.data.iter().enumerate().all(agrees), "{offset} {count}");
        assert_eq!(read.file_attributes.unwrap().size, size);
    }
}

async fn names(server: &Running, client: &mut Client, file: nfs_fh3) {
    let dir = client.mkdir(server.root, "dir").await;
    let symlink = SYMLINK3args {
        r#where: place(dir, "link"),
        symlink: symlinkdata3 {
            symlink_attributes: sattr3::default(),
            symlink_data: nfspath3::copy_from_slice(b"../\xff"),
        },
    };
    let link = handle(client.call(&symlink).await);
    let target = client.call(&READLINK3args { symlink: link }).await.unwrap();
    assert_eq!(&target.data[..], b"../\xff");
    assert_eq!(target.symlink_attributes.unwrap().r#type, ftype3::NF3LNK);

    let spec = specdata3 { specdata1: 1, specdata2: 7 };
    let device = devicedata3 { dev_attributes: mode(0o600), spec };
    for (text, what, kind) in [
        ("chr", mknoddata3::NF3CHR(device), ftype3::NF3CHR),
        ("blk", mknoddata3::NF3BLK(device), ftype3::NF3BLK),
        ("sock", mknoddata3::NF3SOCK(mode(0o600)), ftype3::NF3SOCK),
        ("fifo", mknoddata3::NF3FIFO(mode(0o600)), ftype3::NF3FIFO),
    ] {
        let made = client.call(&MKNOD3args { r#where: place(dir, text), what }).await.unwrap();
        let attr = made.obj_attributes.unwrap();
        assert_eq!((attr.r#type, attr.mode), (kind, 0o600), "{text}");
        if matches!(kind, ftype3::NF3CHR | ftype3::NF3BLK) {
            assert_eq!(attr.rdev, spec);
        }
    }
    let linked = client.call(&LINK3args { file, link: place(dir, "second") }).await.unwrap();
    assert_eq!(linked.file_attributes.unwrap().nlink, 2);
    let rename = RENAME3args { from: place(dir, "second"), to: place(server.root, "file") };
    let renamed = client.call(&rename).await.unwrap();
    assert!(renamed.fromdir_wcc.after.is_some() && renamed.todir_wcc.after.is_some());

    let list = READDIR3args { dir, cookie: 0, cookieverf: [0; 8], count: 4096 };
    let listed = client.call(&list).await.unwrap();
    assert!(listed.reply.eof);
    // `second` was another name of `file`, so renaming it to that name does nothing (rename(2)).
    assert_eq!(listed.reply.entries.0.len(), 8);
    let plus =
        READDIRPLUS3args { dir, cookie: 0, cookieverf: [0; 8], dircount: 4096, maxcount: 8192 };
    let plus = client.call(&plus).await.unwrap();
    for entry in &plus.reply.entries.0 {
        assert!(entry.name_attributes.is_some() && entry.name_handle.is_some(), "{entry:?}");
    }
    for text in ["link", "chr", "blk", "sock", "fifo", "second"] {
        client.call(&REMOVE3args { object: place(dir, text) }).await.unwrap();
    }
    client.call(&RMDIR3args { object: place(server.root, "dir") }).await.unwrap();
    assert_eq!(client.find(server.root, "dir").await, Err(nfsstat3::NFS3ERR_NOENT));
}

#[tokio::test]
async fn dot_and_dot_dot_lead_where_they_should() {
    let server = running!();
    let mut client = server.tcp().await;
    let dir = client.mkdir(server.root, "dir").await;
    for (from, text, to) in [
        (dir, ".", dir),
        (dir, "..", server.root),
        (server.root, "..", server.root),
        (server.root, ".", server.root),
    ] {
        assert_eq!(client.find(from, text).await, Ok(to), "{text}");
    }
    let file = client.create(server.root, "file").await;
    for text in [".", "..", "x"] {
        assert_eq!(client.find(file, text).await, Err(nfsstat3::NFS3ERR_NOTDIR), "{text}");
    }
}

#[tokio::test]
async fn bad_handles_are_told_apart() {
    let server = running!();
    let mut client = server.tcp().await;
    let gone = client.create(server.root, "gone").await;
    client.call(&REMOVE3args { object: place(server.root, "gone") }).await.unwrap();
    let mut foreign = server.root.as_bytes().to_vec();
    foreign[1] ^= 1;
    for (handle, expected) in [
        (gone, nfsstat3::NFS3ERR_STALE),
        (nfs_fh3::new(&foreign).unwrap(), nfsstat3::NFS3ERR_STALE),
        (nfs_fh3::new(b"").unwrap(), nfsstat3::NFS3ERR_BADHANDLE),
        (nfs_fh3::new(b"garbage").unwrap(), nfsstat3::NFS3ERR_BADHANDLE),
        (nfs_fh3::new(&[0xff; 64]).unwrap(), nfsstat3::NFS3ERR_BADHANDLE),
    ] {
        for (at, found) in each_with_handle(&mut client, handle, server.root).await {
            assert_eq!(found, expected, "argument set {at} with {handle:?}");
        }
    }
}

/// The status of each procedure that takes a handle, called with this handle.
async fn each_with_handle(
    client: &mut Client,
    h: nfs_fh3,
    root: nfs_fh3,
) -> Vec<(usize, nfsstat3)> {
    let p = || place(h, "x");
    let how = createhow3::GUARDED(mode(0o600));
    let symlink = symlinkdata3 { symlink_attributes: mode(0), symlink_data: nfspath3::default() };
    let data = data3::default();
    let list =
        READDIRPLUS3args { dir: h, cookie: 0, cookieverf: [0; 8], dircount: 512, maxcount: 4096 };
    let what = mknoddata3::NF3FIFO(mode(0));
    let set = SETATTR3args { object: h, new_attributes: mode(0), guard: None };
    let write = WRITE3args { file: h, offset: 0, count: 0, stable: stable_how::UNSTABLE, data };
    let found = vec![
        status(client.call(&GETATTR3args { object: h }).await),
        status(client.call(&set).await),
        status(client.call(&LOOKUP3args { what: p() }).await),
        status(client.call(&ACCESS3args { object: h, access: 1 }).await),
        status(client.call(&READLINK3args { symlink: h }).await),
        status(client.call(&READ3args { file: h, offset: 0, count: 1 }).await),
        status(client.call(&write).await),
        status(client.call(&CREATE3args { r#where: p(), how }).await),
        status(client.call(&MKDIR3args { r#where: p(), attributes: mode(0) }).await),
        status(client.call(&SYMLINK3args { r#where: p(), symlink }).await),
        status(client.call(&MKNOD3args { r#where: p(), what }).await),
        status(client.call(&REMOVE3args { object: p() }).await),
        status(client.call(&RMDIR3args { object: p() }).await),
        status(client.call(&RENAME3args { from: p(), to: place(root, "y") }).await),
        status(client.call(&RENAME3args { from: place(root, "y"), to: p() }).await),
        status(client.call(&LINK3args { file: h, link: place(root, "y") }).await),
        status(client.call(&LINK3args { file: root, link: p() }).await),
        status(
            client.call(&READDIR3args { dir: h, cookie: 0, cookieverf: [0; 8], count: 512 }).await,
        ),
        status(client.call(&list).await),
        status(client.call(&FSSTAT3args { fsroot: h }).await),
        status(client.call(&FSINFO3args { fsroot: h }).await),
        status(client.call(&PATHCONF3args { object: h }).await),
        status(client.call(&COMMIT3args { file: h, offset: 0, count: 0 }).await),
    ];
    found.into_iter().enumerate().collect()
}

#[tokio::test]
async fn bad_names_are_refused() {
    let server = running!();
    let mut client = server.udp().await;
    let root = server.root;
    let file = client.create(root, "file").await;
    let symlink = || symlinkdata3 { symlink_attributes: mode(0), symlink_data: "t".into() };
    // The codec cannot encode an invalid name, so it replaces a valid one in the message.
    const GOOD: &str = "a_b";
    let good = || place(root, GOOD);
    let how = createhow3::GUARDED(mode(0o600));
    let messages = [
        client.encode(&LOOKUP3args { what: good() }),
        client.encode(&CREATE3args { r#where: good(), how }),
        client.encode(&MKDIR3args { r#where: good(), attributes: mode(0) }),
        client.encode(&SYMLINK3args { r#where: good(), symlink: symlink() }),
        client.encode(&REMOVE3args { object: good() }),
        client.encode(&RMDIR3args { object: good() }),
        client.encode(&RENAME3args { from: place(root, "file"), to: good() }),
        client.encode(&RENAME3args { from: good(), to: place(root, "new") }),
        client.encode(&LINK3args { file, link: good() }),
    ];
    let encoded = |name: &[u8]| to_segments(&Opaque::<8>::copy_from_slice(name)).to_bytes();
    for bad in [&b""[..], b"/", b"a/b", b"a\0b"] {
        for (_, message) in &messages {
            let message = message.to_bytes();
            let (from, to) = (encoded(GOOD.as_bytes()), encoded(bad));
            let at = message.windows(from.len()).position(|part| part == from).unwrap();
            let message = [&message[..at], &to, &message[at + from.len()..]].concat();
            client.send(&message).await.unwrap();
            let mut reply = client.receive().await.unwrap();
            assert_eq!(ReplyHeader::decode(&mut reply).unwrap().outcome, Outcome::GarbageArgs);
        }
    }
    let names: Vec<_> = std::fs::read_dir(server.path("")).unwrap().collect();
    assert_eq!(names.len(), 1, "nothing was made, moved or removed: {names:?}");
}

#[tokio::test]
async fn names_that_are_too_long_are_refused() {
    let server = running!();
    let mut client = server.udp().await;
    let root = server.root;
    let file = client.create(root, "file").await;
    let long = "n".repeat(256);
    let how = createhow3::GUARDED(mode(0o600));
    let symlink = symlinkdata3 { symlink_attributes: mode(0), symlink_data: "t".into() };
    let at = || place(root, &long);
    let moved = RENAME3args { from: place(root, "file"), to: at() };
    let found = [
        status(client.call(&LOOKUP3args { what: at() }).await),
        status(client.call(&CREATE3args { r#where: at(), how }).await),
        status(client.call(&MKDIR3args { r#where: at(), attributes: mode(0) }).await),
        status(client.call(&SYMLINK3args { r#where: at(), symlink }).await),
        status(client.call(&REMOVE3args { object: at() }).await),
        status(client.call(&RMDIR3args { object: at() }).await),
        status(client.call(&moved).await),
        status(client.call(&LINK3args { file, link: at() }).await),
    ];
    assert!(found.iter().all(|found| *found == nfsstat3::NFS3ERR_NAMETOOLONG), "{found:?}");
    // A name longer than in any file system cannot be decoded.
    let (_, longest) =
        client.encode(&LOOKUP3args { what: place(root, &"n".repeat(NAME_BYTES_MAX)) });
    let mut endless = longest.to_bytes().to_vec();
    let length_at = endless.len() - NAME_BYTES_MAX - 4;
    endless[length_at..length_at + 4].copy_from_slice(&(NAME_BYTES_MAX as u32 + 4).to_be_bytes());
    endless.extend(b"nnnn");
    client.send(&endless).await.unwrap();
    let mut reply = client.receive().await.unwrap();
    assert_eq!(ReplyHeader::decode(&mut reply).unwrap().outcome, Outcome::GarbageArgs);
}

#[tokio::test]
async fn each_status_of_names() {
    let server = running!();
    let mut client = server.tcp().await;
    let root = server.root;
    let file = client.create(root, "file").await;
    let dir = client.mkdir(root, "dir").await;
    client.create(dir, "inside").await;
    let how = createhow3::GUARDED(mode(0o600));
    let create = CREATE3args { r#where: place(root, "file"), how };
    let mkdir = |text| MKDIR3args { r#where: place(root, text), attributes: mode(0o755) };
    let remove = |text| REMOVE3args { object: place(root, text) };
    let rmdir = |text| RMDIR3args { object: place(root, text) };
    let rename = |from, to| RENAME3args { from: place(root, from), to: place(root, to) };
    let link = |dir, text| LINK3args { file, link: place(dir, text) };
    let badtype = MKNOD3args { r#where: place(root, "x"), what: mknoddata3::NF3REG };

    for (found, expected) in [
        (status(client.call(&create).await), nfsstat3::NFS3ERR_EXIST),
        (status(client.call(&mkdir("dir")).await), nfsstat3::NFS3ERR_EXIST),
        (status(client.call(&mkdir(".")).await), nfsstat3::NFS3ERR_EXIST),
        (status(client.call(&mkdir("..")).await), nfsstat3::NFS3ERR_EXIST),
        (status(client.call(&remove("none")).await), nfsstat3::NFS3ERR_NOENT),
        (status(client.call(&remove("dir")).await), nfsstat3::NFS3ERR_ISDIR),
        (status(client.call(&rmdir("dir")).await), nfsstat3::NFS3ERR_NOTEMPTY),
        (status(client.call(&rmdir("file")).await), nfsstat3::NFS3ERR_NOTDIR),
        (status(client.call(&rmdir(".")).await), nfsstat3::NFS3ERR_INVAL),
        (status(client.call(&rmdir("..")).await), nfsstat3::NFS3ERR_EXIST),
        (status(client.call(&rename("none", "x")).await), nfsstat3::NFS3ERR_NOENT),
        (status(client.call(&rename("file", "..")).await), nfsstat3::NFS3ERR_INVAL),
        (status(client.call(&rename("dir", "file")).await), nfsstat3::NFS3ERR_NOTDIR),
        (status(client.call(&rename("file", "dir")).await), nfsstat3::NFS3ERR_ISDIR),
        (status(client.call(&link(root, "dir")).await), nfsstat3::NFS3ERR_EXIST),
        (status(client.call(&link(file, "x")).await), nfsstat3::NFS3ERR_NOTDIR),
        (status(client.call(&badtype).await), nfsstat3::NFS3ERR_BADTYPE),
    ] {
        assert_eq!(found, expected);
    }
    assert_eq!(server.stats().nfs[13].errors, 4, "failures are counted");
}

#[tokio::test]
async fn each_status_of_data() {
    let server = running!();
    let mut client = server.tcp().await;
    let file = client.create(server.root, "file").await;
    let dir = client.mkdir(server.root, "dir").await;
    let write = |offset, count, len: usize| {
        let data = bytes::Bytes::from(vec![0; len]).into();
        WRITE3args { file, offset, count, stable: stable_how::UNSTABLE, data }
    };
    let size = |size| {
        let new_attributes = sattr3 { size: Some(size), ..sattr3::default() };
        SETATTR3args { object: file, new_attributes, guard: None }
    };
    let read = READ3args { file: dir, offset: 0, count: 1 };
    let commit = COMMIT3args { file: dir, offset: 0, count: 0 };
    for (found, expected) in [
        (status(client.call(&READLINK3args { symlink: file }).await), nfsstat3::NFS3ERR_INVAL),
        (status(client.call(&read).await), nfsstat3::NFS3ERR_ISDIR),
        (status(client.call(&commit).await), nfsstat3::NFS3ERR_INVAL),
        (status(client.call(&write(0, 5, 4)).await), nfsstat3::NFS3ERR_INVAL),
        (status(client.call(&write(i64::MAX as u64, 1, 1)).await), nfsstat3::NFS3ERR_FBIG),
        (status(client.call(&size(u64::MAX)).await), nfsstat3::NFS3ERR_INVAL),
    ] {
        assert_eq!(found, expected);
    }
}

#[tokio::test]
async fn restarts_keep_handles_good() {
    let server = running!();
    let mut client = server.tcp().await;
    let dir = client.mkdir(server.root, "dir").await;
    let file = client.create(dir, "file").await;
    std::fs::write(server.path("dir/file"), b"content").unwrap();
    std::fs::rename(server.path("dir/file"), server.path("elsewhere")).unwrap();
    let list = READDIR3args { dir: server.root, cookie: 0, cookieverf: [0; 8], count: 200 };
    let first = client.call(&list).await.unwrap().reply;
    let dir_of_server = server.stop().await;

    let server = Running::on(dir_of_server, crate::harness::options(), |_| {}).await.unwrap();
    let mut client = server.tcp().await;
    let read = client.call(&READ3args { file, offset: 0, count: 100 }).await.unwrap();
    assert_eq!(&read.data[..], b"content");
    assert_eq!(client.find(dir, "..").await, Ok(server.root));
    // A listing continues where it was.
    let cookie = first.entries.0.last().unwrap().cookie;
    let rest = client.call(&READDIR3args { cookie, count: 4096, ..list }).await.unwrap().reply;
    assert!(rest.eof && first.entries.0.len() + rest.entries.0.len() == 4);
}

#[tokio::test]
async fn attributes_from_before_are_sent_where_no_other_change_can_have_come_between() {
    for sole_front_door in [false, true] {
        let server =
            running!(crate::harness::options(), |config| config.sole_front_door = sole_front_door);
        let mut client = server.tcp().await;
        let file = client.create(server.root, "file").await;
        let attr = client.call(&GETATTR3args { object: file }).await.unwrap().obj_attributes;
        let write = WRITE3args {
            file,
            offset: 0,
            count: 3,
            stable: stable_how::UNSTABLE,
            data: bytes::Bytes::from_static(b"abc").into(),
        };
        let wcc = client.call(&write).await.unwrap().file_wcc;
        let expected = wcc_attr { size: attr.size, mtime: attr.mtime, ctime: attr.ctime };
        assert_eq!(wcc.before, Some(expected), "the file system knows it of files");
        assert_eq!(wcc.after.unwrap().size, 3);
        let root = client.call(&GETATTR3args { object: server.root }).await.unwrap().obj_attributes;
        let removed = client.call(&REMOVE3args { object: place(server.root, "file") }).await;
        let before = removed.unwrap().dir_wcc.before;
        assert_eq!(before.map(|before| before.ctime), sole_front_door.then_some(root.ctime));
    }
}
