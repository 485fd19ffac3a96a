use super::*;
use fleet::{Build, Class, Day, Digest, HostId};

fn program() -> Program {
    Program { build: Build::parse("0a").unwrap(), class: Class::default() }
}

fn wait<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

fn folder() -> (tempfile::TempDir, Remote) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("a b")).unwrap();
    let remote = Remote::open(&format!("file://{}/a%20b", folder.path().display()), &[]).unwrap();
    (folder, remote)
}

#[test]
fn a_folder_is_a_store() {
    let (_folder, remote) = folder();
    let program = program();
    wait(async {
        assert_eq!(remote.get(&program, &Key::Current).await.unwrap(), None);
        assert_eq!(remote.list("v1/0a/default/c", None, usize::MAX).await.unwrap(), []);
        assert_eq!(remote.programs().await.unwrap(), []);
        assert!(remote.create(&program, &Key::Head(1), b"one".to_vec()).await.unwrap());
        assert!(!remote.create(&program, &Key::Head(1), b"two".to_vec()).await.unwrap());
        assert_eq!(remote.get(&program, &Key::Head(1)).await.unwrap(), Some(b"one".to_vec()));
        remote.replace(&program, &Key::Current, b"x".to_vec()).await.unwrap();
        let Changed::New(_, tag) = remote.get_if_changed(&program, &Key::Current, None).await.unwrap() else {
            panic!()
        };
        let again = remote.get_if_changed(&program, &Key::Current, tag.as_deref()).await.unwrap();
        assert_eq!(again, Changed::Same);
        for day in [1, 2, 3] {
            let key = Key::Contribution { day: Day(day), host: HostId::of("h"), digest: Digest::of(b"d") };
            remote.create(&program, &key, Vec::new()).await.unwrap();
        }
        let list = async |after: Option<&str>, most| {
            remote.list("v1/0a/default/c", after, most).await.unwrap().len()
        };
        let second = format!("v1/0a/default/c/{}/000002", HostId::of("h"));
        assert_eq!([list(None, 9).await, list(None, 2).await, list(Some(&second), 9).await], [3, 2, 2]);
        assert_eq!(remote.hosts("v1/0a/default/c").await.unwrap(), [HostId::of("h")]);
        assert_eq!(remote.programs().await.unwrap(), std::slice::from_ref(&program));
        assert!(remote.stored(&program, &Key::Current).await.unwrap() > 1_700_000_000);
        remote.replace(&program, &Key::Current, vec![0; usize::try_from(LIMIT).unwrap() + 1]).await.unwrap();
        let huge = remote.get(&program, &Key::Current).await.unwrap_err();
        assert!(matches!(huge, Error::Refused { .. }), "{huge}");
    });
}

#[test]
fn trouble_is_told_apart() {
    let io = |kind: ErrorKind| object_store::Error::Generic {
        store: "x",
        source: Box::new(std::io::Error::new(kind, "some reason")),
    };
    let kind = |e: &object_store::Error| match trouble("read x", e) {
        Error::Store { kind, why, .. } => {
            assert!(why.contains("some reason"), "{why}");
            kind
        }
        other => panic!("{other}"),
    };
    assert_eq!(kind(&io(ErrorKind::StorageFull)), Trouble::Full);
    assert_eq!(kind(&io(ErrorKind::ReadOnlyFilesystem)), Trouble::ReadOnly);
    assert_eq!(kind(&io(ErrorKind::PermissionDenied)), Trouble::Denied);
    assert_eq!(kind(&io(ErrorKind::TimedOut)), Trouble::Unreachable);
    let source = || "some reason".into();
    let path = || "x".to_owned();
    assert_eq!(
        kind(&object_store::Error::Unauthenticated { path: path(), source: source() }),
        Trouble::Denied
    );
    assert_eq!(kind(&object_store::Error::NotSupported { source: source() }), Trouble::Wrong);
}
