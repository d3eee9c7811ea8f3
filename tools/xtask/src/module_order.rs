//! A test: the first-level modules of adverb-verbs and adverb-net have an order. Each imports only from modules below it,
//! and by the module's path, not through `lib.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use support::paths;

use crate::unsafe_inventory::scan;

/// The imports of a crate: for each first-level module the names that follow `crate::` in it, each with a file that
/// has it.
type Imports = BTreeMap<String, BTreeMap<String, String>>;

/// Adds the imports of the source files in a directory. `module` is the path of the directory's module.
fn add_imports(directory: &Path, module: &[String], imports: &mut Imports) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_string_lossy().into_owned();
        if stem == "lib" || stem == "tests" || stem.ends_with("_tests") {
            continue;
        }
        let inner = [module, std::slice::from_ref(&stem)].concat();
        if path.is_dir() {
            add_imports(&path, &inner, imports);
            continue;
        }
        let module = if stem == "mod" { module } else { &inner };
        let source = fs::read_to_string(&path).unwrap();
        let found = imports.entry(module[0].clone()).or_default();
        for name in imported_names(&code(&source), module.len()) {
            found.entry(name).or_insert_with(|| path.display().to_string());
        }
    }
}

/// Returns the code of a file without comments, strings and its module `tests`.
fn code(source: &str) -> String {
    let lines: Vec<String> = scan::split(source).into_iter().map(|line| line.code).collect();
    let tests = lines.windows(2).position(|pair| scan::is_tests(&pair[0]) && pair[1].starts_with("mod "));
    lines[..tests.unwrap_or(lines.len())].join("\n")
}

/// Returns the names that follow `crate::` in the code, and those that follow the `super::` of a module at this depth
/// if they reach the root of the crate. The name of a list in braces is empty.
fn imported_names(code: &str, depth: usize) -> BTreeSet<String> {
    let name_at = |at: usize| {
        let rest = &code[at..];
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        rest[..end].to_owned()
    };
    let to_root = "super::".repeat(depth);
    let from_root = code.match_indices("crate::").map(|(at, found)| at + found.len());
    let from_module = code.match_indices(&to_root).map(|(at, found)| at + found.len());
    from_root.chain(from_module).map(name_at).filter(|name| name != "super").collect()
}

/// Returns the modules that can't be put into an order: each imports from another one of them, and is imported by one.
fn circle(imports: &Imports) -> Imports {
    let mut left = imports.clone();
    loop {
        let names: BTreeSet<String> = left.keys().cloned().collect();
        for (module, imported) in &mut left {
            imported.retain(|name, _| name != module && names.contains(name));
        }
        let imported: BTreeSet<String> = left.values().flat_map(BTreeMap::keys).cloned().collect();
        left.retain(|module, from| !from.is_empty() && imported.contains(module));
        if left.len() == names.len() {
            return left;
        }
    }
}

#[test]
fn first_level_modules_have_an_order() {
    for name in ["adverb-verbs", "adverb-net"] {
        let mut imports = Imports::new();
        add_imports(&paths::root().join("crates").join(name).join("src"), &[], &mut imports);
        assert!(imports.len() > 5, "{name} has only the modules {:?}", imports.keys());
        let modules: BTreeSet<String> = imports.keys().cloned().collect();
        for (module, imported) in &imports {
            for (item, file) in imported {
                assert!(
                    modules.contains(item),
                    "{file}: {module} imports `{item}` from the root of {name}: name its module"
                );
            }
        }
        let circle = circle(&imports);
        assert!(circle.is_empty(), "these modules of {name} import from each other in a circle: {circle:#?}");
    }
}

#[test]
fn a_circle_and_imports_from_the_root_are_found() {
    let source = "use super::super::upper; // crate::comment\nuse crate::{a, b};\nlet x = crate::lower::f(\"crate::text\");\n\
                  #[cfg(test)]\nmod tests { use crate::test; }";
    let names: Vec<String> = imported_names(&code(source), 2).into_iter().collect();
    assert_eq!(names, ["", "lower", "upper"]);

    let file = |name: &str| (name.to_owned(), "file.rs".to_owned());
    let imports =
        |module: &str, names: &[&str]| (module.to_owned(), names.iter().copied().map(file).collect());
    let mut modules = Imports::from([
        imports("low", &["low"]),
        imports("middle", &["low"]),
        imports("high", &["middle", "low"]),
    ]);
    assert!(circle(&modules).is_empty());
    modules.extend([imports("low", &["middle"])]);
    let circle: Vec<String> = circle(&modules).into_keys().collect();
    assert_eq!(circle, ["low", "middle"]);
}
