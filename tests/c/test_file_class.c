// SPDX-License-Identifier: Apache-2.0
// Paths of servers' files, as they are in data folders of MySQL 5.1 to 9.7, MariaDB 5.5 to 11,
// MyRocks and PostgreSQL.
#include "base/file_class.h"

#include "check.h"

static const struct {
	const char *path;
	enum stall_file_class class;
} paths[] = {
	{"/var/lib/mysql/ib_logfile0", STALL_FILE_REDO},
	{"/var/lib/mysql/ib_logfile101", STALL_FILE_REDO},
	{"/var/lib/mysql/#innodb_redo/#ib_redo582", STALL_FILE_REDO},
	{"/var/lib/mysql/#innodb_redo/#ib_redo583_tmp", STALL_FILE_REDO},
	{"/var/lib/mysql/aria_log.00000001", STALL_FILE_REDO},
	{"/var/lib/mysql/aria_log_control", STALL_FILE_REDO},
	{"/var/lib/mysql/.rocksdb/000012.log", STALL_FILE_REDO},
	{"/var/lib/mysql/#rocksdb/000012.log", STALL_FILE_REDO},
	{"/var/lib/postgresql/16/main/pg_wal/000000010000000000000001", STALL_FILE_REDO},
	{"/data/pg_xlog/000000010000000000000001", STALL_FILE_REDO},
	{"/var/lib/mysql/#ib_16384_0.dblwr", STALL_FILE_DOUBLEWRITE},
	{"/var/lib/mysql/#ib_16384_1.bdblwr", STALL_FILE_DOUBLEWRITE},
	{"/var/lib/mysql/xb_doublewrite", STALL_FILE_DOUBLEWRITE},
	{"/var/lib/mysql/undo_001", STALL_FILE_UNDO},
	{"/var/lib/mysql/undo001", STALL_FILE_UNDO},
	{"/var/lib/mysql/mine.ibu", STALL_FILE_UNDO},
	{"/var/lib/mysql/ibtmp1", STALL_FILE_TEMPORARY},
	{"/var/lib/mysql/test/#sql-ib1070-3.ibd", STALL_FILE_TEMPORARY},
	{"/tmp/#sql2b1c_9_0.MYI", STALL_FILE_TEMPORARY},
	{"/var/lib/mysql/#innodb_temp/temp_3.ibt", STALL_FILE_TEMPORARY},
	{"/tmp/mysql_temptable.q3cV7d", STALL_FILE_TEMPORARY},
	{"/pg/base/pgsql_tmp/pgsql_tmp4711.0", STALL_FILE_TEMPORARY},
	{"/pg/base/16384/t3_16390", STALL_FILE_TEMPORARY},
	{"/var/lib/mysql/host-relay-bin.000003", STALL_FILE_RELAY},
	{"/var/lib/mysql/host-relay-bin.index", STALL_FILE_RELAY},
	{"/var/lib/mysql/host-relay-bin-east.000003", STALL_FILE_RELAY},
	{"/var/lib/mysql/relay-bin.000001", STALL_FILE_RELAY},
	{"/var/lib/mysql/relay-log.info", STALL_FILE_RELAY},
	{"/var/lib/mysql/mysql-bin.000123", STALL_FILE_BINLOG},
	{"/var/lib/mysql/binlog.000123", STALL_FILE_BINLOG},
	{"/var/lib/mysql/binlog.index", STALL_FILE_BINLOG},
	{"/logs/shop.1000000", STALL_FILE_BINLOG},
	{"/var/lib/mysql/ibdata1", STALL_FILE_DATA},
	{"/var/lib/mysql/mysql.ibd", STALL_FILE_DATA},
	{"/var/lib/mysql/test/t1#P#p0.ibd", STALL_FILE_DATA},
	{"/var/lib/mysql/test/t.MYD", STALL_FILE_DATA},
	{"/var/lib/mysql/test/t.MYI", STALL_FILE_DATA},
	{"/var/lib/mysql/test/t.MAD", STALL_FILE_DATA},
	{"/var/lib/mysql/test/t.MAI", STALL_FILE_DATA},
	{"/var/lib/mysql/.rocksdb/000010.sst", STALL_FILE_DATA},
	{"/pg/base/16384/2619", STALL_FILE_DATA},
	{"/pg/base/16384/2619_fsm", STALL_FILE_DATA},
	{"/pg/base/16384/2619.1", STALL_FILE_DATA},
	{"/pg/global/1262", STALL_FILE_DATA},
	{"/pg/pg_tblspc/16400/PG_16_202307071/16384/16401", STALL_FILE_DATA},
	{"base/16384/2619", STALL_FILE_DATA}, // PostgreSQL works in its data folder
	{"/var/lib/mysql/test/t.frm", STALL_FILE_OTHER},
	{"/var/lib/mysql/auto.cnf", STALL_FILE_OTHER},
	{"/var/lib/mysql/ib_logfile", STALL_FILE_OTHER},
	{"/var/lib/mysql/ib_logfile0.old", STALL_FILE_OTHER},
	{"/var/lib/mysql/xib_logfile0", STALL_FILE_OTHER},
	{"/var/lib/mysql/undo", STALL_FILE_OTHER},
	{"/var/lib/mysql/undo_log", STALL_FILE_OTHER},
	{"/var/log/mysql/error.log", STALL_FILE_OTHER},
	{"/srv/000012.log", STALL_FILE_OTHER},
	{"/srv/x.00001", STALL_FILE_OTHER},
	{"/srv/xbase/16384/2619", STALL_FILE_OTHER},
	{"/", STALL_FILE_OTHER},
	{"", STALL_FILE_OTHER},
};

int main(void)
{
	for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
		const char *class = stall_file_class_name(stall_file_class(paths[i].path, false));

		if (strcmp(class, stall_file_class_name(paths[i].class)) != 0)
			fprintf(stderr, "%s\n", paths[i].path);
		CHECK_STRING(class, stall_file_class_name(paths[i].class));
	}
	CHECK_INT(stall_file_class("/tmp/MLfd=42", true), STALL_FILE_TEMPORARY);
	CHECK_INT(stall_file_class("/tmp/ibXa4k1s", true), STALL_FILE_TEMPORARY);
	CHECK_INT(stall_file_class("/tmp/ibXa4k1s", false), STALL_FILE_OTHER);
	CHECK_INT(stall_file_class("/var/lib/mysql/test/gone.ibd", true), STALL_FILE_DATA);
	return check_done();
}
