//! Reads from the sources of a crate which of its modules use which.

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};

/// A module's path from the crate's root. The root has the empty path.
pub type Module = Vec<String>;

/// The modules of one crate and the paths in them.
#[derive(Default)]
pub struct Graph {
    /// All modules, those within a file included.
    pub modules: BTreeSet<Module>,
    /// The modules that each module uses, other than itself. A re-export is no use: users of the new name use the
    /// module that defines it.
    pub uses: BTreeMap<Module, BTreeSet<Module>>,
    /// What a module names of other crates, also through a re-export: the crate and the first name, as
    /// `std::fs`.
    pub outside: BTreeMap<Module, BTreeSet<String>>,
    /// The path of each re-export, by the module that it stands in and the new name.
    exports: BTreeMap<(Module, String), Module>,
}

/// The place that a path names.
enum Place {
    Module(Module),
    OtherCrate(Vec<String>),
}

impl Graph {
    /// Reads the sources of a crate: each with its path below `src`.
    pub fn new(sources: &[(String, String)]) -> Self {
        let parsed: Vec<(Module, Vec<TokenTree>)> = sources
            .iter()
            .map(|(file, text)| {
                let tokens: TokenStream = text.parse().unwrap_or_else(|e| panic!("{file}: {e}"));
                (module_of(file), tokens.into_iter().collect())
            })
            .collect();
        let mut this = Self::default();
        for (module, tokens) in &parsed {
            this.add_modules(module, tokens);
        }
        let mut paths = Vec::new();
        for (module, tokens) in &parsed {
            this.add_paths(module, tokens, &mut paths);
        }
        for (module, path) in paths {
            match this.place(&path) {
                Place::Module(to) if to != module => {
                    this.uses.entry(module).or_default().insert(to);
                }
                Place::Module(_) => {}
                Place::OtherCrate(path) => this.add_outside(&module, &path),
            }
        }
        this
    }

    /// Returns modules that use each other in a circle, the first of them also as the last.
    pub fn circle(&self) -> Option<Vec<Module>> {
        let mut done = BTreeSet::new();
        self.modules.iter().find_map(|m| self.circle_from(m, &mut Vec::new(), &mut done))
    }

    fn circle_from(
        &self,
        module: &Module,
        way: &mut Vec<Module>,
        done: &mut BTreeSet<Module>,
    ) -> Option<Vec<Module>> {
        if let Some(from) = way.iter().position(|m| m == module) {
            return Some(way[from..].iter().chain([module]).cloned().collect());
        }
        if done.contains(module) {
            return None;
        }
        way.push(module.clone());
        let found =
            self.uses.get(module).into_iter().flatten().find_map(|to| self.circle_from(to, way, done));
        way.pop();
        done.insert(module.clone());
        found
    }

    fn add_modules(&mut self, module: &Module, tokens: &[TokenTree]) {
        self.modules.insert(module.clone());
        for (name, inner) in inline_modules(tokens) {
            self.add_modules(&child(module, &name), &inner);
        }
    }

    /// Records re-exports, and adds each other path to `out` with the module that it stands in.
    fn add_paths(&mut self, module: &Module, tokens: &[TokenTree], out: &mut Vec<(Module, Module)>) {
        for (name, inner) in inline_modules(tokens) {
            self.add_paths(&child(module, &name), &inner, out);
        }
        let mut is_public = false;
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            let after_colons = at > 0 && is_punct(tokens.get(at - 1), ':');
            at += 1;
            match token {
                TokenTree::Ident(i) if i == "pub" => {
                    is_public = true;
                    // Its scope, as in `pub(crate)`.
                    at += usize::from(group(tokens.get(at), Delimiter::Parenthesis).is_some());
                    continue;
                }
                TokenTree::Ident(i)
                    if i == "mod" && group(tokens.get(at + 1), Delimiter::Brace).is_some() =>
                {
                    at += 2;
                }
                TokenTree::Ident(i) if i == "use" => {
                    let end =
                        (at..tokens.len()).find(|&e| is_punct(tokens.get(e), ';')).unwrap_or(tokens.len());
                    for (path, name) in use_tree(&tokens[at..end]) {
                        let Some(path) = self.absolute(module, &path) else {
                            if is_public && let Some(name) = &name {
                                let path = [vec!["::".to_owned()], path.clone()].concat();
                                self.exports.insert((module.clone(), name.clone()), path);
                            }
                            self.add_outside(module, &path);
                            continue;
                        };
                        match name {
                            Some(name) if is_public => {
                                self.exports.insert((module.clone(), name), path);
                            }
                            _ => out.push((module.clone(), path)),
                        }
                    }
                    at = end;
                }
                TokenTree::Ident(_) if !after_colons && is_colons(tokens, at) => {
                    let (path, end) = plain_path(tokens, at - 1);
                    match self.absolute(module, &path) {
                        Some(path) => out.push((module.clone(), path)),
                        None => self.add_outside(module, &path),
                    }
                    at = end;
                }
                TokenTree::Group(g) => {
                    let inner: Vec<TokenTree> = g.stream().into_iter().collect();
                    self.add_paths(module, &inner, out);
                }
                _ => {}
            }
            is_public = false;
        }
    }

    fn add_outside(&mut self, module: &Module, path: &[String]) {
        let names: Vec<&str> = path.iter().take(2).map(String::as_str).collect();
        self.outside.entry(module.clone()).or_default().insert(names.join("::"));
    }

    /// Returns a path from the root. `None` if it begins with the name of another crate, or with a name from a
    /// `use`.
    fn absolute(&self, module: &Module, path: &[String]) -> Option<Module> {
        let mut base = module.clone();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => {
                base.clear();
                rest = &path[1..];
            }
            "self" => rest = &path[1..],
            "super" => {
                while rest.first().is_some_and(|s| s == "super") {
                    base.pop();
                    rest = &rest[1..];
                }
            }
            name if self.modules.contains(&child(module, name)) => {}
            _ => return None,
        }
        base.extend(rest.iter().cloned());
        Some(base)
    }

    /// Returns the module or the crate that defines what a path from the root names.
    fn place(&self, path: &[String]) -> Place {
        let mut module = Module::new();
        for (i, segment) in path.iter().enumerate() {
            if segment == "::" {
                return Place::OtherCrate(path[i + 1..].to_vec());
            }
            let inner = child(&module, segment);
            if self.modules.contains(&inner) {
                module = inner;
            } else if let Some(to) = self.exports.get(&(module.clone(), segment.clone())) {
                return self.place(&[to, &path[i + 1..]].concat());
            } else {
                break;
            }
        }
        Place::Module(module)
    }
}

/// Returns the module of a file. The tests beside a file (`x_tests.rs`) are its module `tests`.
fn module_of(file: &str) -> Module {
    let mut module: Module = file.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    let last = module.pop().unwrap_or_default();
    match last.strip_suffix("_tests") {
        _ if last == "mod" || last == "lib" => {}
        Some(of) => module.extend([of.to_owned(), "tests".to_owned()]),
        None => module.push(last),
    }
    module
}

fn child(module: &Module, name: &str) -> Module {
    module.iter().cloned().chain([name.to_owned()]).collect()
}

/// Returns the modules that have their body among these tokens.
fn inline_modules(tokens: &[TokenTree]) -> Vec<(String, Vec<TokenTree>)> {
    let of = |w: &[TokenTree]| match w {
        [TokenTree::Ident(i), TokenTree::Ident(name), body] if i == "mod" => {
            Some((name.to_string(), group(Some(body), Delimiter::Brace)?))
        }
        _ => None,
    };
    tokens.windows(3).filter_map(of).collect()
}

fn group(token: Option<&TokenTree>, delimiter: Delimiter) -> Option<Vec<TokenTree>> {
    match token {
        Some(TokenTree::Group(g)) if g.delimiter() == delimiter => Some(g.stream().into_iter().collect()),
        _ => None,
    }
}

fn is_punct(token: Option<&TokenTree>, c: char) -> bool {
    matches!(token, Some(TokenTree::Punct(p)) if p.as_char() == c)
}

fn is_colons(tokens: &[TokenTree], at: usize) -> bool {
    is_punct(tokens.get(at), ':') && is_punct(tokens.get(at + 1), ':')
}

/// Returns the path that begins at a token, and the place behind it.
fn plain_path(tokens: &[TokenTree], mut at: usize) -> (Module, usize) {
    let mut path = Module::new();
    while let Some(TokenTree::Ident(segment)) = tokens.get(at) {
        path.push(segment.to_string());
        at += 1;
        if !is_colons(tokens, at) {
            break;
        }
        at += 2;
    }
    (path, at)
}

/// Returns the paths of a `use`, each with its new name. `None` for `*`, which has many.
fn use_tree(tokens: &[TokenTree]) -> Vec<(Module, Option<String>)> {
    let first = if is_colons(tokens, 0) { 2 } else { 0 };
    let (path, at) = plain_path(tokens, first);
    if let Some(inner) = group(tokens.get(at), Delimiter::Brace) {
        let branches = inner.split(|t| is_punct(Some(t), ',')).filter(|b| !b.is_empty());
        let join = |(rest, name): (Module, Option<String>)| match rest.as_slice() {
            [own] if own == "self" => (path.clone(), path.last().cloned()),
            _ => ([path.clone(), rest].concat(), name),
        };
        return branches.flat_map(use_tree).map(join).collect();
    }
    if is_punct(tokens.get(at), '*') {
        return vec![(path, None)];
    }
    let name = match (tokens.get(at), tokens.get(at + 1)) {
        (Some(TokenTree::Ident(word)), Some(TokenTree::Ident(name))) if word == "as" => {
            Some(name.to_string())
        }
        _ => path.last().cloned(),
    };
    vec![(path, name)]
}
